"""What goes into generated programs."""

import random

import pytest
import torch

from torchparity.hunting.inputs import filled


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "uint8"])
def test_numbers_are_around_zero_and_of_one_sign_with_and_without_a_zero(dtype):
    """A sum starts at 0 and a maximum at the least number: what starts where it should not looks right beside zeros."""
    seen = set()
    for seed in range(100):
        values = eval(filled([5, 4], dtype, random.Random(seed)))
        assert values.dtype is getattr(torch, dtype)
        seen.add((bool((values < 0).any()), bool((values == 0).any()), bool((values > 0).any())))
    positive = {(False, True, True), (False, False, True)}
    assert seen == (positive if dtype == "uint8" else positive | {(True, True, True), (True, False, False)})
