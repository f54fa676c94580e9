"""Tensors that a few words of source can say: ones, `arange`, a seeded fill, a short list of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from torchparity.compare.matrices import row_of_bytes

# Longer tensors are said by a rule, or not at all.
LITERAL = 32
SEED = 0
# Larger tensors are not compared with every fill.
LARGE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A way to fill a tensor; a lower rank is simpler."""

    name: str
    rank: int


DATA = Fill(name="data", rank=9)
ROUNDED = Fill(name="rounded", rank=4)
ONES = Fill(name="ones", rank=0)
ZEROS = Fill(name="zeros", rank=0)
ARANGE = Fill(name="arange", rank=1)
SEEDED = Fill(name="seeded", rank=2)
LITERALS = Fill(name="literals", rank=5)
RULES = (ONES, ARANGE, SEEDED)


def plain_dtype(dtype: torch.dtype) -> bool:
    """Tell whether a dtype is one that people write without thinking."""
    return dtype in (torch.float32, torch.int64, torch.bool)


def torch_name(dtype: torch.dtype) -> str:
    """Return a dtype as source."""
    return str(dtype)


def filled(shape: tuple[int, ...], dtype: torch.dtype, fill: Fill) -> torch.Tensor | None:
    """Return a tensor filled by a rule; None where the rule says nothing for that dtype."""
    expression = RULE_SOURCES[fill](shape, dtype) if fill in RULE_SOURCES else None
    if expression is None:
        return None
    made = _made(expression)
    return made if made is not None and made.dtype == dtype and tuple(made.shape) == shape else None


def _made(expression: str) -> torch.Tensor | None:
    """Return the tensor that an expression makes; None where torch has no such function for its dtype."""
    try:
        made: torch.Tensor = eval(expression, {"torch": torch})
    except RuntimeError:
        return None
    return made


def _given(dtype: torch.dtype, *, default: torch.dtype) -> str:
    return "" if dtype == default else f", dtype={dtype}"


def _ones(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"torch.ones({list(shape)}{_given(dtype, default=torch.float32)})"


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"torch.zeros({list(shape)}{_given(dtype, default=torch.float32)})"


def _arange(shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    if dtype == torch.bool or dtype.is_complex:
        return None
    count = torch.Size(shape).numel()
    number = f"{count}." if dtype == torch.float32 else str(count)
    plain = f"torch.arange({number}{'' if dtype in (torch.float32, torch.int64) else f', dtype={dtype}'})"
    return plain if len(shape) == 1 else f"{plain}.reshape({list(shape)})"


def _seeded(shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    generator = f"generator=torch.Generator().manual_seed({SEED})"
    if dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize == 1:
            return None
        return f"torch.randn({list(shape)}{_given(dtype, default=torch.float32)}, {generator})"
    high = 2 if dtype == torch.bool else 10
    return f"torch.randint({high}, {list(shape)}{_given(dtype, default=torch.int64)}, {generator})"


RULE_SOURCES: Mapping[Fill, Callable[[tuple[int, ...], torch.dtype], str | None]] = {
    ONES: _ones,
    ZEROS: _zeros,
    ARANGE: _arange,
    SEEDED: _seeded,
}


def recognised(tensor: torch.Tensor) -> Fill:
    """Return the simplest fill that gives this tensor, bit for bit."""
    if tensor.layout != torch.strided or tensor.numel() > LARGE:
        return DATA
    dense = tensor.detach().cpu().contiguous()
    for fill in RULE_SOURCES:
        made = filled(tuple(dense.shape), dense.dtype, fill)
        if made is not None and same_bits(made, dense):
            return fill
    if dense.numel() <= LITERAL and literals(dense) is not None:
        return ROUNDED if same_bits(rounded(dense), dense) else LITERALS
    return DATA


def fill_source(tensor: torch.Tensor) -> str | None:
    """Return an expression that makes a dense tensor's values again, bit for bit; None where only data can."""
    fill = recognised(tensor)
    dense = tensor.detach().cpu().contiguous()
    if fill in RULE_SOURCES:
        return RULE_SOURCES[fill](tuple(dense.shape), dense.dtype)
    return literals(dense) if fill in (ROUNDED, LITERALS) else None


def literals(dense: torch.Tensor) -> str | None:
    """Return a tensor as a list of numbers, where that gives the same bits again."""
    if dense.is_complex() and not dense.isfinite().all():
        return None
    text = repr(dense.tolist()).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
    natural = torch.float32 if dense.is_floating_point() else torch.bool if dense.dtype == torch.bool else torch.int64
    source = f"torch.tensor({text}{_given(dense.dtype, default=natural)})"
    if dense.numel() == 0:
        return f"torch.empty({list(dense.shape)}{_given(dense.dtype, default=torch.float32)})"
    made = _made(source)
    return source if made is not None and made.dtype == dense.dtype and same_bits(made, dense) else None


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its numbers cut to two significant digits."""
    if not tensor.is_floating_point():
        return tensor
    numbers = [float(f"{number:.2g}") for number in tensor.detach().double().flatten().tolist()]
    return torch.tensor(numbers, dtype=tensor.dtype, device=tensor.device).reshape(tensor.shape)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two dense tensors hold the same bytes (a NaN is a NaN here)."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.numel() == 0:
        return True
    first, second = (row_of_bytes(entry.contiguous()) for entry in (left, right))
    return first is not None and second is not None and torch.equal(first, second)


def stride_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions of a tensor from the outermost to the innermost in memory."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
