"""Halving finds what a failure needs, and counts its questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchparity.graphs.search import needed


@given(
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=6)))
)
def test_exactly_what_is_needed_is_found(drawn):
    count, culprits = drawn
    assert needed(range(count), lambda kept: culprits <= set(kept)) == sorted(culprits)


@pytest.mark.parametrize("count", [50, 800, 3200])
@pytest.mark.parametrize("culprits", [(7,), (7, 31), (3, 20, 45)])
def test_questions_grow_with_the_logarithm(count, culprits):
    asked = []

    def fails(kept):
        asked.append(kept)
        return set(culprits) <= set(kept)

    assert needed(range(count), fails) == list(culprits)
    assert len(asked) <= 2 * len(culprits) * (math.log2(count) + 1)


def test_any_two_of_three_suffice():
    assert len(needed(range(100), lambda kept: len({3, 50, 97} & set(kept)) >= 2)) == 2
