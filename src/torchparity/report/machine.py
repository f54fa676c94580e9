"""A verdict, or any record, as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError
from torchparity.records import SCHEMA_VERSION, Verdict
from torchparity.records.wire import plain_data


def as_data(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data, ready for JSON."""
    data = plain_data(verdict)
    assert isinstance(data, dict)
    facts = {"severity": verdict.severity.value, "exit_code": verdict.exit_code}
    return {"schema": SCHEMA_VERSION, **data, **facts}


def write_json(verdict: Verdict, path: Path) -> None:
    """Write a verdict to a file, whole or not at all."""
    write_data(as_data(verdict), path)


def write_data(data: dict[str, Any], path: Path) -> None:
    """Write plain data to a file, whole or not at all."""
    write_whole(json.dumps(data, indent=2, allow_nan=False) + "\n", path, option="--json")


def write_whole(text: str, path: Path, *, option: str) -> None:
    """Write a text to the file that an option names, whole or not at all.

    A link is followed, a pipe or a device is written into, and a file that is there keeps its mode and its owner.
    """
    try:
        place = path.resolve()
        if place.exists() and not place.is_file():
            with place.open("w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            return
        replace_text(text, place)
    except (OSError, RuntimeError) as error:  # Links that go in circles are a RuntimeError.
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {path}: {why}", hint=f"give {option} a file in a folder that exists") from error


def replace_text(text: str, place: Path) -> None:
    """Put a text in the place of what a file holds, in one step."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        if place.exists():
            before = place.stat()
            temporary.chmod(stat.S_IMODE(before.st_mode))
            with contextlib.suppress(OSError):  # Another one's file becomes ours where we may not give it away.
                os.chown(temporary, before.st_uid, before.st_gid)
        temporary.replace(place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
