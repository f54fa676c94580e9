"""Which of many changes makes a failure go away? One where one is enough, found by halving."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torchparity.graphs.search import needed
from torchparity.records import Status, Trial

T = TypeVar("T")
Attempt = Callable[[list[T]], Trial]
Alike = Callable[[Trial], bool]


def fewest(candidates: list[T], attempt: Attempt[T], failed_alike: Alike) -> tuple[list[T], Trial] | None:
    """Return the fewest candidates with which an attempt passes, one if possible, and the run that shows it.

    About log2(n) runs where one is enough. All of them at once may break the compiler, which tells nothing, as no
    answer does: only a run that passes accuses, and only one that fails alike clears.
    """
    if not candidates:
        return None
    whole = attempt(candidates)
    if failed_alike(whole):
        return None
    found = _halve(candidates, attempt, failed_alike, whole)
    if found is not None or whole.status is not Status.SAME:
        return found
    several = needed(candidates, lambda chosen: attempt(chosen).status is Status.SAME)
    shown = attempt(several)
    return (several, shown) if shown.status is Status.SAME else None


def _halve(
    candidates: list[T], attempt: Attempt[T], failed_alike: Alike, trial: Trial | None
) -> tuple[list[T], Trial] | None:
    """Look for one candidate; `trial` is the run with all of them, None where they are only believed to pass."""
    if len(candidates) == 1:
        trial = trial or attempt(candidates)
        return (candidates, trial) if trial.status is Status.SAME else None
    middle = len(candidates) // 2
    first, second = candidates[:middle], candidates[middle:]
    tried = attempt(first)
    found = None if failed_alike(tried) else _halve(first, attempt, failed_alike, tried)
    if found is not None:
        return found
    passes = trial is None or trial.status is Status.SAME
    if passes and failed_alike(tried):
        return _halve(second, attempt, failed_alike, None)
    other = attempt(second)
    return None if failed_alike(other) else _halve(second, attempt, failed_alike, other)
