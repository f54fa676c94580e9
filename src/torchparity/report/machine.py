"""A verdict, or any record, as JSON."""

from __future__ import annotations

import json
import os
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
    """Write a text to the file that an option names, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint=f"give {option} a file in a folder that exists"
        ) from error
