"""Everything about two leaves that needs no statistics: types, dtypes, shapes, strides, aliases, texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from torchparity import torchapi
from torchparity.compare.leaves import ATOMS, Leaf, class_of, parts_of
from torchparity.records import Kind, Mismatch

# Roles whose strides and aliasing a user of the model can see.
LAYOUT_ROLES = ("output",)
STRUCTURE_ROLE = "structure"


def tensor_of(value: Any) -> torch.Tensor | None:
    """Return a leaf's value as a tensor, or None where it is not a number of any sort."""
    if isinstance(value, torch.Tensor):
        if not torchapi.has_values(value):
            return None
        return value.detach() if torchapi.can_be_written(value) else value.detach().clone()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubc":
        if value.dtype in (np.longdouble, np.clongdouble):
            value = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
        return torch.as_tensor(np.ascontiguousarray(value) if value.ndim else value, device="cpu")
    if isinstance(value, float | complex):
        return torch.tensor(
            value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64, device="cpu"
        )
    if isinstance(value, bool | int):
        return torch.tensor(value, device="cpu") if -(2**63) <= value < 2**63 else None
    return None


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or array, -1 for a ragged dimension."""
    if not isinstance(value, torch.Tensor | np.ndarray) or getattr(value, "is_nested", False):
        return ()  # A nested tensor has no shape of its own: its rows do.
    shape: tuple[Any, ...] = tuple(value.shape)
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def printed_shape(tensor: torch.Tensor) -> str:
    """Return a shape to compare and to show; of a nested tensor, the shapes of its rows."""
    if tensor.is_nested:
        return str([shape_of(row) for _, row in parts_of(tensor)])
    return str(shape_of(tensor))


def is_float(dtype: torch.dtype) -> bool:
    """Tell whether values of a dtype carry rounding (floats and complex numbers)."""
    return dtype.is_floating_point or dtype.is_complex


def aligned(leaf: Leaf) -> tuple[int, ...] | None:
    """Strides that matter: those of dimensions with more than one element, of a tensor that has any."""
    if leaf.strides is None or not isinstance(leaf.value, torch.Tensor) or leaf.value.numel() == 0:
        return None
    return tuple(stride for stride, size in zip(leaf.strides, leaf.value.shape, strict=True) if size > 1)


def compare_facts(expected: Leaf, actual: Leaf) -> Iterator[Mismatch]:
    """Yield every difference that needs no numbers: type, dtype, shape, stride, alias, mutation."""
    left, right = expected.value, actual.value
    if isinstance(left, torch.Tensor) != isinstance(right, torch.Tensor) or ((left is None) != (right is None)):
        yield fact(Kind.STRUCTURE, "type", type(left).__name__, type(right).__name__)
        return
    if not isinstance(left, torch.Tensor):
        if tensor_of(left) is None and not _equal(left, right):
            kind = Kind.STRUCTURE if expected.role == STRUCTURE_ROLE else Kind.OBJECT
            yield fact(kind, "value", repr(left), repr(right))
        elif type(left) is not type(right):
            yield fact(Kind.STRUCTURE, "type", type(left).__name__, type(right).__name__)
        elif isinstance(left, np.ndarray):
            if left.dtype != right.dtype:
                yield fact(Kind.DTYPE, "dtype", str(left.dtype), str(right.dtype))
            if left.shape != right.shape:
                yield fact(Kind.SHAPE, "shape", str(left.shape), str(right.shape))
        return
    pairs: list[tuple[Kind, str, Any, Any]] = [
        (Kind.STRUCTURE, "class", class_of(left), class_of(right)),
        (Kind.LAYOUT, "layout", left.layout, right.layout),
        (Kind.DEVICE, "device", left.device, right.device),
        (Kind.DTYPE, "dtype", left.dtype, right.dtype),
        (Kind.SHAPE, "shape", printed_shape(left), printed_shape(right)),
    ]
    if expected.role in LAYOUT_ROLES:
        pairs.append((Kind.STRIDE, "stride", aligned(expected), aligned(actual)))
        pairs.append((Kind.ALIAS, "aliases", expected.aliases, actual.aliases))
        pairs.append((Kind.REQUIRES_GRAD, "requires_grad", expected.requires_grad, actual.requires_grad))
        if expected.requires_grad and actual.requires_grad:
            words = {True: "none", False: "a function"}
            pairs.append((Kind.REQUIRES_GRAD, "grad_fn", words[expected.is_leaf], words[actual.is_leaf]))
    for kind, name, wanted, found in pairs:
        if wanted != found:
            yield fact(kind, name, str(wanted), str(found))
            if kind is Kind.SHAPE:
                return


def fact(kind: Kind, name: str, expected: str, actual: str) -> Mismatch:
    """Make a mismatch of two printable facts."""
    return Mismatch(kind=kind, detail=name, expected=expected[:200], actual=actual[:200])


def _equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if not isinstance(left, ATOMS) and "__eq__" not in {
        name for kind in type(left).__mro__[:-1] for name in vars(kind)
    }:
        return True  # Two objects of one class without values of their own to compare.
    try:
        return bool(left == right)
    except (TypeError, ValueError, RuntimeError):
        return False


def fills_its_storage(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor shares its storage with no other, as far as its size tells."""
    return torchapi.storage_key(tensor) is None or tensor.nbytes == tensor.untyped_storage().nbytes()
