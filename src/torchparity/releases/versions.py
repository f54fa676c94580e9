"""Versions of torch: what can be asked for, which of two is newer, whether one lies between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchparity.errors import UsageError

SERIES = re.compile(r"\d+\.\d+")
VERSION = re.compile(r"\d+\.\d+(\.\d+)?((a|b|rc)\d+)?(\.dev\d+)?(\+[\w.]+)?")
PARTS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:(a|b|rc)(\d+))?(?:\.dev(\d+))?")
# How far a release has come; one that says none of these words is out.
STAGES = {"a": 1, "b": 2, "rc": 3}
OUT = 4


def read_releases(words: Iterable[str]) -> tuple[str, ...]:
    """Return the releases that words ask for, each once; a word may hold several with commas between them."""
    asked = [part.strip().removeprefix("v") for word in words for part in word.split(",") if part.strip()]
    for entry in asked:
        if not VERSION.fullmatch(entry):
            hint = "write 2.9 for the newest 2.9 that there is, or 2.9.1 for exactly this one"
            raise UsageError(f"{entry!r} is no release of torch", hint=hint)
    return tuple(dict.fromkeys(asked))


def requirement(asked: str) -> str:
    """Return what pip is to be asked for."""
    return f"torch=={asked}.*" if SERIES.fullmatch(asked) else f"torch=={asked}"


def series_of(version: str) -> str:
    """Return the series of a version: 2.9 of 2.9.1."""
    found = SERIES.match(version)
    return found[0] if found else version


def meets(version: str, asked: str) -> bool:
    """Tell whether a version is what was asked for: any patch of a series that is out, or exactly this one."""
    if SERIES.fullmatch(asked):
        return series_of(version) == asked and order(version)[3] == OUT
    return version == asked or ("+" not in asked and version.partition("+")[0] == asked)


def order(version: str) -> tuple[int, ...]:
    """Return what versions are sorted by: 2.9.1 before 2.10.0rc1 before 2.10.0; what is no version comes last."""
    found = PARTS.match(version)
    if found is None:
        return (2**31,)
    major, minor, patch, stage, number, nightly = found.groups()
    come = STAGES.get(stage or "", 0 if nightly else OUT)
    return (int(major), int(minor), int(patch or 0), come, int(number or 0), int(nightly or 0))


def skips(before: str, after: str) -> bool:
    """Tell whether there are releases between two, as far as their numbers show it: 2.9 and 2.11 do, 2.9 and 2.10 not.

    The last patch of a series is known to nobody, so the next series follows any of its patches.
    """
    early, late = order(before), order(after)
    if len(early) < 2 or len(late) < 2 or early[0] != late[0]:
        return True
    return late[1] - early[1] > 1 or (late[1] == early[1] and late[2] - early[2] > 1)


def newest_series(versions: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the newest series among versions, from the oldest of them to the newest."""
    known = {series_of(version) for version in versions if order(version)[-3:] == (OUT, 0, 0)}
    return tuple(sorted(known, key=order)[-count:])
