"""Room on Python's stack: calls at the border of a chunk ask the operating system for memory each time."""

from __future__ import annotations

import resource
import sys

import pytest

from torchparity.stack import roomy

CALLS, DEPTHS = 500, range(250)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")


def small(a, b):
    """A function such as compilers call a hundred thousand times."""
    return a if a is b else b


def faults_of_calls():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for count in range(CALLS):
        small(count, small(count, count))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def at_depth(depth):
    return at_depth(depth - 1) if depth else faults_of_calls()


def worst():
    return max(at_depth(depth) for depth in DEPTHS)


@roomy
def worst_with_room():
    return worst()


def test_calls_at_the_border_of_a_chunk_cost_no_memory_with_room():
    assert worst_with_room() < CALLS // 10
    assert worst() > CALLS // 2, "this Python keeps its chunks: the room is of no use here"


def test_what_is_called_with_room_is_called_as_ever():
    @roomy
    def add(first, *rest, by=1, **named):
        return first + sum(rest) + by, named

    assert add(1, 2, 3, by=4, other=5) == (10, {"other": 5})
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        add()

    @roomy
    def down(count):
        return count and down(count - 1)

    assert down(50) == 0
