"""The lines of a recorded program that a failure needs: cut at the end, then at the start, by halving."""

from __future__ import annotations

from collections.abc import Callable

from torchparity.programs.recorded import Recorded
from torchparity.programs.small import Question

Written = Callable[[str], str]


def shortest(recorded: Recorded, question: Question, loaded: Written, *, plainly: bool) -> str:
    """Return a part of a recorded program that still fails, on plain data where that will do.

    `loaded` tells how a name's own value is read from a file; `plainly` whether the whole fails on plain data.
    """
    total = len(recorded.lines)
    written = plain_values(recorded) if plainly else loaded

    def fails(start: int, stop: int, way: Written) -> bool:
        try:
            text = recorded.text(start, stop, way)
        except KeyError:  # It would begin with a part of a tuple, of which no value was kept.
            return False
        return question([text]) is not None

    stop = _least(1, total, lambda place: fails(0, place, written))
    start = total - _least(total - stop + 1, total, lambda place: fails(total - place, stop, loaded))
    for way in (plain_values(recorded), lambda name: recorded.extreme[name], loaded):
        if fails(start, stop, way):
            return recorded.text(start, stop, way)
    return recorded.text(0, stop, written)


def plain_values(recorded: Recorded) -> Written:
    """Return how values are written that are like those of the model, of small numbers."""
    return lambda name: recorded.plain[name]


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the least place that halving finds for which something holds, as it does for the highest."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
