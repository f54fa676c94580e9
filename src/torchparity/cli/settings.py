"""Settings of the compiler as the command line says them: AREA.KEY=VALUE."""

from __future__ import annotations

import ast
from typing import Any

from torchparity.errors import UsageError


def read_setting(entry: str) -> tuple[str, Any]:
    """Read KEY=VALUE; the value is a Python literal, or else a string."""
    key, separator, text = entry.partition("=")
    if not separator or not key:
        raise UsageError(f"{entry!r} is not a setting", hint="write --config inductor.key=value")
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = {"true": True, "false": False, "none": None}
        return key, words.get(text.lower(), text)
