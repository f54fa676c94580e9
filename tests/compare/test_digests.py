"""A leaf by its bits: another bit, place, dtype or fact is another mark."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import torchparity
from torchparity import torchapi
from torchparity.compare.digests import mark_of
from torchparity.compare.leaves import Leaf
from torchparity.compare.matrices import identical, row_of_bytes
from torchparity.repro.fills import same_bits

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


def odd(shape, strides, dtype=torch.float32, offset=0):
    """Return a tensor whose strides nobody would choose, and who is contiguous all the same."""
    return (torch.arange(64) % 7).to(dtype).as_strided(shape, strides, offset)


ODD = [((), ()), ((1,), (0,)), ((1,), (2,)), ((1, 1), (5, 0)), ((1, 1), (0, 3)), ((3, 1), (1, 9)), ((0,), (4,))]


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize(("shape", "strides"), ODD)
def test_one_number_has_bits_whatever_its_strides(shape, strides, dtype, offset):
    value = odd(shape, strides, dtype, offset)
    plain = torch.empty(shape, dtype=dtype).copy_(value)
    assert identical(value, plain)
    assert torch.equal(row_of_bytes(value), row_of_bytes(plain))
    assert same_bits(value, plain)
    if value.numel():
        assert not identical(value, plain.logical_not().to(dtype))


@pytest.mark.parametrize(("shape", "strides"), ODD)
def test_a_model_that_returns_it_and_takes_it_has_a_verdict(shape, strides):
    def model(x, y):
        return x, y.as_strided(shape, strides), (x * 2).sum()

    given = odd(shape, strides, offset=3)
    verdict = torchparity.check(model, (given, torch.ones(64)), backend="aot_eager", ignore=("stride",))
    assert verdict.status is torchparity.Status.SAME, verdict.reasons
