"""A verdict as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError
from torchparity.records import SCHEMA_VERSION, Verdict


def as_data(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data, ready for JSON."""
    data = _plain(verdict)
    assert isinstance(data, dict)
    return {"schema": SCHEMA_VERSION, **data, "exit_code": verdict.exit_code}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(verdict: Verdict, path: Path) -> None:
    """Write a verdict to a file, whole or not at all."""
    text = json.dumps(as_data(verdict), indent=2, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="give --json a file in a folder that exists"
        ) from error
