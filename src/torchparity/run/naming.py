"""Names of targets, looked at before anything is imported."""

from __future__ import annotations

import difflib
from pathlib import Path

from torchparity.errors import TargetError, UsageError

FORMS = "a target is file.py:name or package.module:name"


def require(target: str) -> None:
    """Refuse a target that cannot be one, without importing anything."""
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{target!r} is not a target", hint=FORMS)
    path = Path(place)
    if place.endswith(".py") and not path.is_file():
        near = difflib.get_close_matches(path.name, _files_beside(path), n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else FORMS
        raise TargetError(f"there is no file {place}", hint=hint)


def _files_beside(path: Path) -> list[str]:
    return [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
