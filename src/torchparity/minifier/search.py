"""Which elements does a failure need? Found by halving, in about `2 k log2(n / k)` queries for `k` of `n`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


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
