"""Results that look exact and are not: another format tells. Only noise that looks closely asks.

The cosine of a small number is 1 in float16, and float64 says that it is not: it is moved like any other result. A
zero may be what is left of a number too small for float16: compiled code that keeps float32 in between goes on with the
number, and a sum of many such zeros is no zero there. Such a zero becomes the least number of its sign, as often as
makes up for what was lost on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchparity import torchapi
from torchparity.run.mode import fresh_outputs, written_tensors
from torchparity.run.operators import Traits, float_tensors

# Formats that lose small numbers, which compilers widen in between.
LOSING = (torch.float16, torch.bfloat16)
FLOATS = (torch.float64, torch.float32, *LOSING)


def widened(tree: Any, dtype: torch.dtype) -> Any:
    """Return arguments with floats of this format in the place of all others; tensors are copies."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(dtype, copy=True) if leaf.dtype in FLOATS else leaf
        return dtype if leaf in FLOATS else leaf

    return torchapi.tree_map(widen, tree)


def looks_exact(target: torch.Tensor, low_bits: torch.Tensor) -> torch.Tensor | None:
    """Tell where a result's low bits are all zero, though it is not infinite; None where nowhere.

    A zero is looked at in short formats only: elsewhere it is one.
    """
    found = (low_bits == 0) & torch.isfinite(target)
    if target.dtype not in LOSING:
        found &= target != 0
    return found if bool(found.any()) else None


@dataclass
class Twins:
    """One operation and its arguments, kept as they were before it wrote to them, to be run in other formats."""

    func: Callable[..., Any]
    traits: Traits
    wide: Any
    single: Any = None

    @classmethod
    def of(cls, func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Twins:
        """Keep the arguments: in float64, and in float32 where a shorter format is among them."""
        tree = (args, kwargs)
        short = any(tensor.dtype in LOSING for tensor in float_tensors(tree))
        return cls(func, traits, widened(tree, torch.float64), widened(tree, torch.float32) if short else None)

    def widest(self) -> list[torch.Tensor]:
        """Return the results in the widest format: float64, of those that were kept."""
        return self._run(self.wide)

    def kept(self) -> list[torch.Tensor]:
        """Return the results in float32, as code computes them that rounds nothing in between."""
        return self._run(self.single) if self.single is not None else []

    def _run(self, arguments: Any) -> list[torch.Tensor]:
        args, kwargs = arguments
        try:
            outputs = self.func(*args, **kwargs)
        except Exception:  # noqa: BLE001 - without a kernel of that format nothing is told
            return []
        return float_tensors(written_tensors(self.traits, args, kwargs)) + float_tensors(
            fresh_outputs(outputs, args, kwargs)
        )


def restore_lost(target: torch.Tensor, lost: torch.Tensor, kept: torch.Tensor, drawn: torch.Tensor) -> None:
    """Make zeros the least number of their format, as often as the numbers that were lost are parts of it.

    `drawn` are numbers between 0 and 1.
    """
    least = torch.finfo(target.dtype).smallest_normal * torch.finfo(target.dtype).eps
    often = lost & (kept.abs() > drawn * least)
    target.copy_(torch.where(often, (kept.sign() * least).to(target.dtype), target))
