"""What a run leaves behind, compared with what was there."""

from __future__ import annotations

import pytest
import torch

from torchparity.run.collect import unchanged


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_nested_inputs_are_compared_part_by_part(layout):
    def nested(last):
        return torch.nested.nested_tensor([torch.ones(2), torch.tensor([1.0, last, 3.0])], layout=layout)

    assert unchanged(nested(2.0), nested(2.0))
    assert not unchanged(nested(2.0), nested(2.5))


EIGHTS = [*range(1, 20), 64, 1001]
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_other_number_is_seen_wherever_it_lies(dtype):
    for size in EIGHTS:
        for first in (0, 1, 3):  # Where a view begins, the bytes of eight numbers do not lie at multiples of eight.
            held = torch.zeros(size + first).to(dtype)[first:]
            assert unchanged(held, torch.zeros(size).to(dtype))
            for place in {0, size // 2, size - 1}:
                other = torch.zeros(size)
                other[place] = 1
                assert not unchanged(held, other.to(dtype)), (size, first, place)


@pytest.mark.parametrize(
    "seen_as", [torch.Tensor.conj, torch.Tensor.t, lambda tensor: tensor.conj().imag], ids=["conj", "t", "imag"]
)
def test_a_view_is_compared_by_its_numbers(seen_as):
    numbers = torch.randn(3, 4, dtype=torch.complex64)
    assert unchanged(seen_as(numbers), seen_as(numbers.clone()))
    assert not unchanged(seen_as(numbers), seen_as(numbers + 1j))


def test_what_holds_no_number_and_is_left_alone_has_not_changed():
    numbers = torch.tensor([1.0, float("nan")])
    assert unchanged(numbers, numbers.clone())
    assert not unchanged(numbers, torch.tensor([float("nan"), 1.0]))
    assert unchanged(torch.tensor([0.0, 0.0]), torch.tensor([-0.0, 0.0]))
