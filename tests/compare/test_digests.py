"""A leaf by its bits: another bit, place, dtype or fact is another mark."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from torchparity import torchapi
from torchparity.compare.digests import mark_of
from torchparity.compare.leaves import Leaf

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
        ],
    ),
]


def leaf_of(value, **facts):
    return Leaf(path="output", role="output", value=value, **facts)


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_bits_have_the_same_mark_and_others_another(device):
    dtypes = (torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.bool)
    for size, dtype in itertools.product((1, 3, 8, 4096, 16_385, 1 << 20), dtypes):
        values = torch.arange(size, device=device).remainder(5).to(dtype)
        first = mark_of(leaf_of(values))
        assert first is not None
        assert first == mark_of(leaf_of(values.clone()))
        for place in {0, size // 2, size - 1}:
            other = values.clone()
            other[place] = other[place].logical_not()
            assert mark_of(leaf_of(other)) != first, (size, dtype, place)


@pytest.mark.parametrize("device", DEVICES)
def test_two_changes_do_not_make_up_for_each_other(device):
    values = torch.arange(1.0, 65.0, dtype=torch.float64, device=device)
    first = mark_of(leaf_of(values))
    signs = values.clone()
    signs[[3, 60]] *= -1
    swapped = values.clone()
    swapped[[3, 60]] = values[[60, 3]]
    moved = values + torch.tensor([1.0, -1.0], device=device).repeat(32)
    assert all(mark_of(leaf_of(other)) != first for other in (signs, swapped, moved, values.flip(0)))


@pytest.mark.parametrize("device", DEVICES)
def test_facts_are_part_of_a_mark(device):
    values = torch.zeros(4, 6, device=device)
    first = mark_of(leaf_of(values))
    others = [values.view(6, 4), values.view(torch.int32), values.double(), torch.nn.Parameter(values)]
    assert all(mark_of(leaf_of(other)) != first for other in others)
    for fact in ({"strides": (6, 1)}, {"aliases": ("x",)}, {"requires_grad": True}, {"is_leaf": False}):
        assert mark_of(leaf_of(values, **fact)) != first
    assert mark_of(dataclasses.replace(leaf_of(values), original=values)) == first


def test_what_does_not_lie_in_memory_plainly_has_no_mark():
    class Own(torch.Tensor):
        pass

    numbers = torch.randn(4, 6)
    strange = [numbers.t(), numbers.to_sparse(), torch.zeros(3, device="meta"), numbers.as_subclass(Own), "text", None]
    assert [mark_of(leaf_of(value)) for value in strange] == [None] * len(strange)
    assert mark_of(leaf_of(torchapi.negative_view(numbers))) is None
    assert mark_of(leaf_of(numbers.to(torch.complex64).conj())) is None
