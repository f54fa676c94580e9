"""Integers made of floats that they cannot hold: nobody is held to them, and to everything beside them as before."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity import Status
from torchparity.run.casts import undefined_in

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
VALUES = [1.5, -3.0, 1e30, float("nan"), float("-inf"), 7.0]
UNDEFINED = [2, 3, 4]


def model_of(dtype, way):
    def model(x):
        if way == "copy_":
            return torch.zeros(x.shape, dtype=dtype).copy_(x)
        return x.to(dtype) if way == "to" else x.to(dtype) // 2 + 1

    return model


def judged(model, change):
    def backend(graph_module, inputs):
        def run(*inputs):
            (found, *_) = graph_module(*inputs)
            return (change(found.clone()),)

        return run

    return torchparity.check(model, (torch.tensor(VALUES),), backend=backend, no_grad=True)


def changed(places, by):
    def change(found):
        found[places] += by
        return found

    return change


@pytest.mark.parametrize("way", ["to", "copy_", "further"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_what_they_become_is_nobodys_error(dtype, way):
    verdict = judged(model_of(dtype, way), changed([place for place in UNDEFINED if dtype != torch.uint8], 5))
    assert verdict.status is not Status.DIFFERS, verdict.reasons
    assert any("cannot hold" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("way", ["to", "copy_", "further"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_what_stands_beside_them_is(dtype, way, place):
    assert judged(model_of(dtype, way), changed([place], 1)).status is Status.DIFFERS


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_ends_of_a_range_are_in_it(dtype):
    limits = torch.iinfo(dtype)
    inside = torch.tensor([limits.min, 0.5, -0.5], dtype=torch.float64)
    assert undefined_in("_to_copy", (inside,), {"dtype": dtype}, inside.to(dtype)) is None
    outside = torch.tensor([float(limits.max) + 1.0], dtype=torch.float64)
    target, where = undefined_in("_to_copy", (outside,), {"dtype": dtype}, outside.to(dtype))
    assert where.all()
    assert target.shape == outside.shape


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_float64_is_looked_at_and_left_as_it_is(shape):
    x = torch.tensor([1.5, -2.5, 3.25, 0.75], dtype=torch.float64)
    expanded = x.expand(shape)
    assert undefined_in("_to_copy", (expanded,), {}, expanded.to(torch.int64)) is None
    assert x.tolist() == [1.5, -2.5, 3.25, 0.75]


@pytest.mark.parametrize("wrong", [0.0, 0.25])
def test_float64_beside_its_integers_is_held_to_its_numbers(wrong):
    """Noise that cut the floats off would be as large as a wrong answer."""

    def model(x):
        y = x * 1.0
        return y.to(torch.int64), y.sin()

    def backend(graph_module, inputs):
        def run(*inputs):
            whole, found = graph_module(*inputs)
            return whole, found + wrong

        return run

    x = torch.tensor([1.5, -2.3, 3.25, 0.7], dtype=torch.float64)
    verdict = torchparity.check(model, (x,), backend=backend, no_grad=True)
    assert verdict.status is (Status.DIFFERS if wrong else Status.SAME), verdict.reasons
