"""What is left where the terms of a float64 operation cancel each other: its error is as large as theirs.

Of shorter formats float64 tells how far eager is off there. Of float64 nothing does: a mean of -5.6e-17 is what is left
of whole numbers around zero where each step of adding them up divides, and another order leaves a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchparity import torchapi
from torchparity.run.mode import fresh_outputs, written_tensors
from torchparity.run.operators import Traits, float_tensors, terms

# Operations that add up several terms, each with a rounding of its own: with the sizes of their arguments in the place
# of these, they give the size of their terms.
SUMMED = frozenset(
    """
    sum nansum mean cumsum trace std_mean var_mean mm bmm addmm baddbmm addbmm addmv mv dot vdot addr addcmul linear
    convolution _trilinear avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d scatter_add
    index_add add sub rsub
    """.split()
)
# A mean that is corrected number by number divides at each step: whole numbers are no reason for it to be exact.
DIVIDING = frozenset("std_mean var_mean".split())
# Of two terms, which are rounded by themselves only where one of them is multiplied first.
OF_TWO = frozenset("add sub rsub".split())
# The sign with which the second term counts.
SIGNS = {"sub": -1, "rsub": -1}
MULTIPLIERS = ("alpha", "beta", "value")
# How many times as large as its result the terms are, from which on their error is what counts.
MUCH = 8.0
# What low bits a float64 has that looks like an integer, a power of two, or their product.
LOW = (1 << 26) - 1
Steps = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Cancelled:
    """The sizes of an operation's terms, and whether its arguments look so exact that they add up without an error."""

    traits: Traits
    inputs: list[torch.Tensor]
    sizes: list[torch.Tensor]
    exact: torch.Tensor

    @classmethod
    def of(
        cls, func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Cancelled | None:
        """Look at an operation before it runs; None where nothing of it is float64, or cancels."""
        name = traits.name.removesuffix("_")
        inputs = float_tensors((args, kwargs)) if name in SUMMED else []
        if not inputs or any(tensor.dtype != torch.float64 or not torchapi.in_memory(tensor) for tensor in inputs):
            return None
        factors = {key: float(kwargs[key]) for key in MULTIPLIERS if isinstance(kwargs.get(key), int | float)}
        if name in OF_TWO and abs(factors.get("alpha", 1.0)) == 1.0:
            return None
        sign = SIGNS.get(name, 1)
        sized = {key: sign * abs(kwargs[key]) for key in factors}
        of_args, of_kwargs = torchapi.tree_map(size_of, (args, {**kwargs, **sized}))
        try:
            outputs = func(*of_args, **of_kwargs)
        except Exception:  # noqa: BLE001 - without sizes nothing is told
            return None
        sizes = float_tensors(written_tensors(traits, of_args, of_kwargs))
        sizes += float_tensors(fresh_outputs(outputs, of_args, of_kwargs))
        exact = torch.stack([(low_bits(tensor) == 0).all() for tensor in inputs]).all()
        scalars = torch.tensor(list(factors.values()), dtype=torch.float64)
        whole = bool((low_bits(scalars) == 0).all()) and name not in DIVIDING
        return cls(traits, inputs, sizes, exact & whole)

    def move(self, targets: Sequence[torch.Tensor], steps: Steps, unit: float) -> None:
        """Move results as far as the errors of their terms may, where these are much larger."""
        for target, size in zip(targets, self.sizes, strict=False):
            if target.shape != size.shape or target.dtype != torch.float64 or torchapi.overlaps_itself(target):
                continue
            length = 1.0 + math.log2(terms(self.traits, self.inputs, target)) / 4
            moved = (target.abs() * MUCH < size) & torch.isfinite(size) & ((low_bits(target) != 0) | ~self.exact)
            target.addcmul_(steps(target, target.shape), torch.where(moved, size, 0.0), value=length * unit)


def size_of(leaf: Any) -> Any:
    """Return the size of a float tensor's numbers; what is none stays as it is."""
    return leaf.abs() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def low_bits(values: torch.Tensor) -> torch.Tensor:
    """Return the lower half of every float64's mantissa."""
    return values.contiguous().view(torch.int64) & LOW
