"""A result that lies outside of its own memory: nobody may read it, and that is the compiler's doing."""

from __future__ import annotations

import pytest
import torch

from torchparity import Kind, Severity, Status, check

PLACES = [((1, 1), (10, 2), 5), ((2, 3), (3, 1), 4), ((3,), (3,), 0)]


def result(size, stride, offset, *, held):
    base = torch.zeros(10)
    made = base.as_strided(size, stride, offset)
    base.untyped_storage().resize_(held)
    return made


@pytest.mark.parametrize(("size", "stride", "offset"), PLACES)
def test_a_result_outside_of_its_memory_differs(size, stride, offset):
    def backend(graph_module, inputs):
        return lambda *args: (result(size, stride, offset, held=4),)

    def model(x):
        return x.sum() + torch.zeros(1).as_strided(size, [0] * len(size)).clone()

    verdict = check(model, (torch.zeros(1),), backend=backend)
    assert verdict.status is Status.DIFFERS
    assert verdict.severity is Severity.FAILS
    (leaf,) = [leaf for leaf in verdict.leaves if leaf.path == "output"]
    assert Kind.OUT_OF_BOUNDS in {mismatch.kind for mismatch in leaf.mismatches}


@pytest.mark.parametrize(("size", "stride", "offset"), PLACES)
def test_one_that_ends_where_its_memory_ends_is_inside(size, stride, offset):
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))

    def model(x):
        return result(size, stride, offset, held=4 * (last + 1)) + x

    assert check(model, (torch.zeros(1),), backend="eager", allow_eager=True).status is Status.SAME
