"""Tensors said in a few words: what is printed makes the same bits."""

from __future__ import annotations

import math

import pytest
import torch

from torchparity.repro.fills import ARANGE, DATA, LITERALS, ONES, ROUNDED, SEEDED, fill_source, filled, recognised

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [ONES, ARANGE, SEEDED])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0, 2)])
def test_a_rule_is_recognised_and_its_source_makes_the_same_tensor(dtype, fill, shape):
    made = filled(shape, dtype, fill)
    if made is None:
        return
    assert made.shape == shape
    assert made.dtype == dtype
    again = eval(fill_source(made), {"torch": torch})
    assert again.dtype == dtype
    assert torch.equal(again, made)
    assert recognised(made).rank <= fill.rank


def test_short_tensors_are_lists_and_long_ones_are_data():
    assert recognised(torch.tensor([0.5, -12.0])) is ROUNDED
    assert recognised(torch.tensor([1 / 3, 0.1])) is LITERALS
    assert recognised(torch.rand(1000)) is DATA
    assert fill_source(torch.rand(1000)) is None


@pytest.mark.parametrize(
    "value", [[math.nan, math.inf, -math.inf], [-0.0, 0.0], [1e-45, 3.4028235e38], [1 / 3]], ids=str
)
def test_odd_numbers_survive(value):
    tensor = torch.tensor(value)
    again = eval(fill_source(tensor), {"torch": torch})
    assert torch.equal(again.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float8_e4m3fn, [0.5, 2.0]),
        (torch.uint16, [7, 8]),
        (torch.complex64, [complex(math.nan, 1.0), 2j]),
        (torch.complex64, [complex(-math.inf, math.inf)]),
        (torch.complex64, [0.5 + 2j]),
    ],
    ids=str,
)
def test_dtypes_that_no_rule_makes_are_numbers_or_data(dtype, value):
    tensor = torch.tensor(value, dtype=dtype)
    source = fill_source(tensor)
    if source is None:
        assert recognised(tensor) is DATA
    else:
        again = eval(source, {"torch": torch})
        assert again.dtype == dtype
        assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))
