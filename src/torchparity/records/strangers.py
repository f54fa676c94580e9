"""Files from strangers: read with limits, so that none of them takes the machine's memory, its time, or us along."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

MEBI = 1 << 20
# The largest file of facts, and the longest number, that is read.
LARGEST_FACTS = 64 * MEBI
LONGEST_NUMBER = 40
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class TooMuch(ValueError):
    """A file that is larger than any that we would write."""


def read_text(path: Path, *, largest: int = LARGEST_FACTS) -> str:
    """Return the text of a file that is not too large."""
    size = path.stat().st_size
    if size > largest:
        raise TooMuch(f"{path.name} has {size / MEBI:.0f} MiB, and at most {largest / MEBI:.0f} are read")
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise TooMuch(f"{path.name} grows while it is read")
    return data.decode("utf-8")


def read_json(path: Path, *, largest: int = LARGEST_FACTS) -> Any:
    """Return the data of a JSON file that is not too large; raises ValueError where it is not JSON as we write it."""
    return parsed(read_text(path, largest=largest))


def parsed(text: str) -> Any:
    """Return JSON data; numbers that are not finite, or longer than any of ours, are refused."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of ours")


def _integer(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError("a number has too many digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


def harmless(text: str) -> str:
    """Return a text without what would steer a terminal; line ends and tabs stay."""
    return CONTROL.sub("\ufffd", text)
