"""A leaf as a matrix, cut into blocks, and sums over its rows and columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from torchparity import torchapi

# Elements handled at a time: the temporaries of a block stay in a CPU's cache; a GPU wants more.
BLOCK = {"cpu": 1 << 19, "other": 1 << 24}
# One row of so many numbers is cut into several: a sum over each column of one number takes more than the leaf itself.
FOLDED = 1 << 20


@dataclass(frozen=True)
class Shape2d:
    """The matrix view of a leaf: rows and columns as even as the dimensions allow."""

    rows: int
    columns: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Shape2d:
        """Split the dimensions where the two halves are nearest in size; a long row is cut as evenly."""
        total = math.prod(shape)
        splits = [math.prod(shape[:cut]) for cut in range(1, len(shape))] if total else []
        rows = min(splits, key=lambda rows: abs(math.log(rows * rows / total)), default=1)
        if rows in (1, total) and total >= FOLDED:
            rows = even_factor(total)
        return cls(rows, total // max(1, rows))

    @property
    def total(self) -> int:
        """The number of elements."""
        return self.rows * self.columns

    def blocks(self, device: torch.device) -> Iterator[tuple[slice, slice]]:
        """Yield (row slice, column slice) pairs that cover the matrix."""
        if not self.total:
            return
        size = BLOCK.get(device.type, BLOCK["other"])
        columns = min(self.columns, size)
        rows = max(1, size // columns)
        for row in range(0, self.rows, rows):
            for column in range(0, self.columns, columns):
                yield slice(row, row + rows), slice(column, column + columns)


@functools.lru_cache
def even_factor(total: int) -> int:
    """Return the largest factor of a number that is not above its root."""
    return next(factor for factor in range(math.isqrt(total), 0, -1) if total % factor == 0)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real tensor that holds the same numbers (complex as pairs, 8-bit floats widened)."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.float()
    return tensor


def identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two plain tensors hold the same bits, or else the same numbers (zeros of either sign)."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    rows = [row_of_bytes(tensor) for tensor in (left, right)]
    if rows[0] is not None and rows[1] is not None and same_bytes(rows[0], rows[1]):
        return True
    return torch.equal(as_real(left), as_real(right))


def same_on_device(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Tell of pairs on a GPU whether they hold the same bits, as far as that is told by waiting for it once."""
    found = [False] * len(pairs)
    asked: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for place, (left, right) in enumerate(pairs):
        if left.device.type != "cuda" or left.dtype != right.dtype or left.shape != right.shape:
            continue
        rows = [row_of_bytes(tensor) for tensor in (left, right)]
        if rows[0] is not None and rows[1] is not None and rows[1].device == left.device:
            alike = [(one == other).all() for one, other in pieces_of(rows[0], rows[1])]
            asked.setdefault(left.device, []).append((place, torch.stack(alike).all()))
    for flags in asked.values():
        for (place, _), alike in zip(flags, torch.stack([flag for _, flag in flags]).tolist(), strict=True):
            found[place] = alike
    return found


def row_of_bytes(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the memory of a plain tensor as bytes; None where its numbers do not lie there one after the other."""
    if not torchapi.in_memory(tensor) or not tensor.is_contiguous() or torchapi.lies_outside(tensor):
        return None
    row = tensor.detach().reshape(-1)
    # One number is contiguous whatever its stride, and only a stride of one can be seen as bytes.
    return (row if row.stride(0) == 1 else row.as_strided(row.shape, (1,))).view(torch.uint8)


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two rows of bytes are the same."""
    return left.numel() == right.numel() and all(torch.equal(*piece) for piece in pieces_of(left, right))


def pieces_of(left: torch.Tensor, right: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return two rows of bytes, eight as one number where that can be: byte by byte takes eight times as long."""
    words = 0 if left.storage_offset() % 8 or right.storage_offset() % 8 else left.numel() // 8 * 8
    pieces = [(left[:words].view(torch.int64), right[:words].view(torch.int64))] if words else []
    return [*pieces, (left[words:], right[words:])] if words < left.numel() or not words else pieces


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which differences of this dtype are taken."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def power_near(size: float) -> float:
    """Return a power of two near a size, within what float32 can be multiplied by."""
    return 2.0 ** min(120, max(-120, math.frexp(size)[1])) if size > 0 else 1.0


def least_step(dtype: torch.dtype, work: torch.dtype) -> float:
    """Return the least number above zero of a dtype, or the least that is not flushed to zero here."""
    info = torch.finfo(dtype)
    step = float(info.tiny) * float(info.eps)
    survives = float(torch.tensor([step], dtype=work, device="cpu").mul_(1.0)) > 0
    return step if survives else float(torch.finfo(work).tiny)


def matrix(tensor: torch.Tensor, shape: Shape2d) -> torch.Tensor:
    """Return the matrix view of a leaf (a copy where its strides do not allow a view)."""
    return as_real(tensor).reshape(shape.rows, shape.columns)


@dataclass
class Sums:
    """Row and column sums of one difference, and of the difference times eager."""

    row: torch.Tensor
    column: torch.Tensor
    row_dot: torch.Tensor
    column_dot: torch.Tensor
    magnitude: float = 1.0

    @classmethod
    def cut_from(cls, sums: torch.Tensor, shape: Shape2d) -> Sums:
        """Return sums that lie one after the other."""
        row, column, row_dot, column_dot = sums.split([shape.rows, shape.columns] * 2)
        return cls(row, column, row_dot, column_dot)

    @classmethod
    def zeros(cls, shape: Shape2d, device: torch.device, magnitude: float = 1.0) -> Sums:
        """Return sums that nothing has been added to."""

        def vector(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        return cls(vector(shape.rows), vector(shape.columns), vector(shape.rows), vector(shape.columns), magnitude)

    def add(self, rows: slice, columns: slice, difference: torch.Tensor, eager: torch.Tensor) -> None:
        """Add one block (as products with ones: several times faster than a strided sum)."""
        height, width = difference.shape
        down, across = difference.new_ones(height), difference.new_ones(width)
        once, twice = self.magnitude, self.magnitude**2
        difference = difference * (1.0 / once)
        self.row[rows] += (difference @ across).double() * once
        self.column[columns] += (down @ difference).double() * once
        product = difference * (eager * (1.0 / once))
        self.row_dot[rows] += (product @ across).double() * twice
        self.column_dot[columns] += (down @ product).double() * twice

    def vectors(self) -> dict[str, torch.Tensor]:
        """Return every aggregate by name; the scalars are the sums over all rows."""
        return {
            "mean": self.row.sum().reshape(1),
            "scale": self.row_dot.sum().reshape(1),
            "row mean": self.row,
            "column mean": self.column,
            "row scale": self.row_dot,
            "column scale": self.column_dot,
        }
