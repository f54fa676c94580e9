"""Python numbers that eager rounds to a short format before it decides by them: compiled code need not.

`x % 0.3` is what is left by 0.30078125 where `x` is bfloat16, and what eager decides by it the reference takes over.
Code that keeps float32 in between divides by 0.3, which is what was written down, and is right as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchparity import torchapi
from torchparity.run.lookalikes import LOSING, Twins, widened
from torchparity.run.operators import Traits, float_tensors


def as_written(
    func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any], step: int
) -> list[torch.Tensor]:
    """Return what an operation that decides gives in float32, with its numbers as they are written down.

    They are moved by `step` units of float32 where that has to round them as well: a multiple of such a number may be
    on either side of it. Nothing is returned where eager rounds no number.
    """
    formats = {tensor.dtype for tensor in float_tensors((args, kwargs))}
    if traits.random or len(formats) != 1 or not formats.issubset(LOSING):
        return []
    numbers = [leaf for leaf in torchapi.tree_leaves((args, kwargs)) if is_number(leaf)]
    if all(rounded(number, *formats) == number for number in numbers):
        return []

    def moved(leaf: Any) -> Any:
        if not is_number(leaf) or rounded(leaf, torch.float32) == leaf:
            return leaf
        return rounded(leaf, torch.float32) * (1 + step * torch.finfo(torch.float32).eps)

    return Twins(func, traits, torchapi.tree_map(moved, widened((args, kwargs), torch.float32))).widest()


def is_number(leaf: Any) -> bool:
    """Tell whether an argument is a number of Python's that a format may round."""
    return isinstance(leaf, int | float) and not isinstance(leaf, bool) and math.isfinite(leaf)


def rounded(number: float, dtype: torch.dtype) -> float:
    """Return the number of a format that is nearest."""
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))
