"""Which elements does a failure need? Found by halving, in about `2 k log2(n / k)` queries for `k` of `n`."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
# The elements that stay, by their places.
Kept = tuple[int, ...]


class Unanswered(Exception):
    """A search has come to a question whose answer is not known yet."""

    def __init__(self, question: Kept) -> None:
        super().__init__(question)
        self.question = question


def needed(candidates: Sequence[T], fails: Callable[[list[T]], bool], *, background: Sequence[T] = ()) -> list[T]:
    """Return a smallest set of candidates (no member can be left out) with which the failure stays.

    All candidates together must fail, and none must not. (a, b, c, d, e, f) -> (b, e). Junker's divide and conquer:
    a half that is not needed is left out in one query, whatever its size, and nothing is begun again after a success.
    """
    return _needed(list(background), [], list(candidates), fails)


def _needed(background: list[T], added: list[T], candidates: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    if added and fails(background):
        return []
    if len(candidates) <= 1:
        return candidates
    middle = len(candidates) // 2
    first, second = candidates[:middle], candidates[middle:]
    from_second = _needed(background + first, first, second, fails)
    from_first = _needed(background + from_second, from_second, first, fails)
    return from_first + from_second


def kept_of(count: int, answers: Mapping[Kept, bool]) -> list[int]:
    """Run the search over `count` elements with the answers there are; raise Unanswered where one is missing."""

    def fails(kept: list[int]) -> bool:
        question = tuple(sorted(kept))
        if question not in answers:
            raise Unanswered(question)
        return answers[question]

    return [] if count == 0 or fails([]) else needed(range(count), fails)


def foresee(count: int, answers: Mapping[Kept, bool], width: int) -> list[Kept]:
    """Return the next question and those that will probably follow it, at most `width`; none where all is known.

    The search is a pure function of the answers, so it is run again under assumptions, the likeliest first.
    """
    found: list[Kept] = []
    order = itertools.count()
    assumptions: list[tuple[float, int, dict[Kept, bool]]] = [(-1.0, next(order), {})]
    while assumptions and len(found) < width:
        weight, _, assumed = heapq.heappop(assumptions)
        try:
            kept_of(count, {**answers, **assumed})
        except Unanswered as unanswered:
            question = unanswered.question
            if question not in found:
                found.append(question)
            for answer, share in ((False, 0.6), (True, 0.4)):
                heapq.heappush(assumptions, (weight * share, next(order), {**assumed, question: answer}))
    return found
