"""Streaming statistics of one leaf: how far runs lie from the float64 truth, element by element and in sum.

A leaf is seen as a matrix. For every sample run (eager itself, and the noise runs) the difference
d = sample - truth is added to three sorts of accumulators, block by block, so that no run is kept:

    squares      per element: d * d
    row, column  sums of d, and of d * eager: what a bias or a wrong scale moves coherently, and
                 what independent rounding does not
    flips        for integers and bools: where some sample differs from eager

The truth is held as eager plus a float32 correction: half the memory of a float64 copy, and exact
to about 2^-48 of the error's scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

# Elements handled at a time: the temporaries of a block stay in a CPU's cache; a GPU wants more.
BLOCK = {"cpu": 1 << 19, "other": 1 << 24}
# A row or column profile is an average; under this many terms it is too rough to be used.
PROFILE_TERMS = 16


@dataclass(frozen=True)
class Shape2d:
    """The matrix view of a leaf: rows and columns as even as the dimensions allow."""

    rows: int
    columns: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Shape2d:
        """Split the dimensions where the two halves are nearest in size."""
        total = math.prod(shape)
        if len(shape) < 2 or total == 0:
            return cls(1, total)
        splits = [math.prod(shape[:cut]) for cut in range(1, len(shape))]
        rows = min(splits, key=lambda rows: abs(math.log(rows * rows / total)))
        return cls(rows, total // rows)

    @property
    def total(self) -> int:
        """The number of elements."""
        return self.rows * self.columns

    def blocks(self, device: torch.device) -> Iterator[tuple[slice, slice]]:
        """Yield (row slice, column slice) pairs that cover the matrix."""
        size = BLOCK.get(device.type, BLOCK["other"])
        columns = min(self.columns, size)
        rows = max(1, size // max(1, columns))
        for row in range(0, self.rows, rows):
            for column in range(0, self.columns, columns):
                yield slice(row, row + rows), slice(column, column + columns)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real tensor that holds the same numbers (complex as pairs, 8-bit floats widened)."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.float()
    return tensor


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which differences of this dtype are taken."""
    return torch.float64 if dtype == torch.float64 else torch.float32


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

    @classmethod
    def zeros(cls, shape: Shape2d, device: torch.device) -> Sums:
        """Return sums that nothing has been added to."""

        def vector(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        return cls(vector(shape.rows), vector(shape.columns), vector(shape.rows), vector(shape.columns))

    def add(self, rows: slice, columns: slice, difference: torch.Tensor, eager: torch.Tensor) -> None:
        """Add one block."""
        self.row[rows] += difference.sum(1)
        self.column[columns] += difference.sum(0)
        product = difference * eager
        self.row_dot[rows] += product.sum(1)
        self.column_dot[columns] += product.sum(0)

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


class FloatBaseline:
    """Eager's values at one float leaf, the truth, and the spread of rounding noise around it."""

    def __init__(self, eager: torch.Tensor, reference: torch.Tensor | None) -> None:
        real = as_real(eager)
        self.dtype = eager.dtype
        self.shape = tuple(real.shape)
        self.has_reference = reference is not None
        self.layout = Shape2d.of(self.shape)
        self.eager = real.reshape(self.layout.rows, self.layout.columns)
        self.device = real.device
        self.work = working_dtype(real.dtype)
        self.epsilon = torch.finfo(eager.dtype).eps
        self.samples = 0
        self.correction: torch.Tensor | None = None
        self.truth: torch.Tensor | None = None
        self.finite: torch.Tensor | None = None
        self.noise_nonfinite: torch.Tensor | None = None
        self._split(reference)
        self.row_energy, self.column_energy = self._energies()
        self.squares = torch.zeros(
            (self.layout.rows, self.layout.columns), dtype=self.work, device=self.device
        )
        self.sum_squares: dict[str, torch.Tensor] = {}
        self.unit = self._unit()
        self._pool: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def _split(self, reference: torch.Tensor | None) -> None:
        """Hold the truth as a correction to eager, or whole where something is not finite."""
        truth = None if reference is None else matrix(reference, self.layout)
        finite = torch.isfinite(self.eager).all()
        if truth is not None:
            finite &= torch.isfinite(truth).all()
        if not bool(finite):
            self.truth = self.eager.to(torch.float64) if truth is None else truth.to(torch.float64)
            self.finite = torch.isfinite(self.eager) & torch.isfinite(self.truth)
            return
        if truth is None:
            return
        self.correction = torch.empty(truth.shape, dtype=self.work, device=self.device)
        for rows, columns in self.layout.blocks(self.device):
            self.correction[rows, columns] = truth[rows, columns] - self.eager[rows, columns]

    def _energies(self) -> tuple[torch.Tensor, torch.Tensor]:
        sums = Sums.zeros(self.layout, self.device)
        for rows, columns in self.layout.blocks(self.device):
            block = self.block(rows, columns)
            sums.add(rows, columns, block, block)
        return sums.row_dot, sums.column_dot

    def _unit(self) -> float:
        """A power of two near the rounding step of the leaf, so that squares neither over- nor underflow."""
        rms = self.rms()
        return 2.0 ** math.floor(math.log2(rms * self.epsilon)) if rms > 0 else 1.0

    def rms(self) -> float:
        """Root mean square of eager's finite values."""
        return math.sqrt(float(self.row_energy.sum()) / max(1, self.layout.total))

    def block(self, rows: slice, columns: slice) -> torch.Tensor:
        """Eager's values of one block in working precision, zero where not finite."""
        block = self.eager[rows, columns].to(self.work)
        if self.finite is not None:
            block = block.masked_fill(~self.finite[rows, columns], 0.0)
        return block

    def difference(self, sample: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """Sample minus truth over one block; zero where either is not finite."""
        values = sample[rows, columns].to(self.work)
        if self.truth is None:
            difference = values - self.eager[rows, columns].to(self.work)
            if self.correction is not None:
                difference -= self.correction[rows, columns]
            return difference
        difference = (values.double() - self.truth[rows, columns]).to(self.work)
        return torch.nan_to_num_(difference, nan=0.0, posinf=0.0, neginf=0.0)

    def add(self, sample: torch.Tensor, *, amplitude: float = 1.0) -> None:
        """Count one run of the model whose operations were perturbed by `amplitude` roundings."""
        values = matrix(sample, self.layout)
        sums = Sums.zeros(self.layout, self.device)
        for rows, columns in self.layout.blocks(self.device):
            difference = self.difference(values, rows, columns)
            wild = ~torch.isfinite(difference)
            if bool(wild.any()):
                self._note_nonfinite(rows, columns, wild)
                difference.masked_fill_(wild, 0.0)
            sums.add(rows, columns, difference, self.block(rows, columns))
            difference.mul_(1.0 / (amplitude * self.unit))
            self.squares[rows, columns].addcmul_(difference, difference)
        for name, vector in sums.vectors().items():
            square = (vector / amplitude).square()
            held = self.sum_squares.get(name)
            self.sum_squares[name] = square if held is None else held + square
        self.samples += 1
        self._pool = None

    def _note_nonfinite(self, rows: slice, columns: slice, wild: torch.Tensor) -> None:
        if self.noise_nonfinite is None:
            self.noise_nonfinite = torch.zeros_like(self.eager, dtype=torch.bool)
        self.noise_nonfinite[rows, columns] |= wild

    def allowance(self, rows: slice, columns: slice) -> torch.Tensor:
        """One noise unit for each element of a block: its own spread, its neighbours', and the rounding floor."""
        row_noise, column_noise, mean_noise = self.pool()
        variance = self.squares[rows, columns] / max(1, self.samples)
        if mean_noise > 0:
            variance = variance + torch.outer(row_noise[rows], column_noise[columns] / mean_noise)
            variance = variance + POOL_SHARE * mean_noise
        allowance = variance.sqrt_().mul_(self.unit)
        scale = self.block(rows, columns).abs().add_(self._local_rms(rows, columns))
        return allowance.add_(scale, alpha=self.epsilon / 2)

    def pool(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Mean noise by row, by column and over all, in squared units."""
        if self._pool is None:
            scale = 1.0 / max(1, self.samples)
            row = self.squares.mean(1, dtype=torch.float64) * scale
            column = self.squares.mean(0, dtype=torch.float64) * scale
            mean = float(row.mean()) if self.layout.total else 0.0
            row, column = profiles(row, column, mean, self.layout)
            self._pool = (row.to(self.work), column.to(self.work), mean)
        return self._pool

    def _local_rms(self, rows: slice, columns: slice) -> torch.Tensor:
        """How large eager's values are around each element, from row and column energies."""
        mean = self.rms() ** 2
        if mean == 0:
            return torch.zeros((), dtype=self.work, device=self.device)
        row, column = profiles(
            self.row_energy / self.layout.columns,
            self.column_energy / self.layout.rows,
            mean,
            self.layout,
        )
        local = torch.outer(row[rows], column[columns] / mean)
        return local.sqrt_().to(self.work)

    def measure(self, sample: torch.Tensor) -> Sums:
        """Return the sums of sample minus truth without counting the sample."""
        values = matrix(sample, self.layout)
        sums = Sums.zeros(self.layout, self.device)
        for rows, columns in self.layout.blocks(self.device):
            difference = self.difference(values, rows, columns)
            torch.nan_to_num_(difference, nan=0.0, posinf=0.0, neginf=0.0)
            sums.add(rows, columns, difference, self.block(rows, columns))
        return sums


# Share of the leaf's mean noise variance that every element is granted whatever its surroundings
# say: a tenth of the leaf's noise, so that one loud row cannot hide the quiet ones.
POOL_SHARE = 0.01


def profiles(
    row: torch.Tensor, column: torch.Tensor, mean: float, layout: Shape2d
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flatten a profile that is the average of too few terms."""
    if layout.columns < PROFILE_TERMS:
        row = torch.full_like(row, mean)
    if layout.rows < PROFILE_TERMS:
        column = torch.full_like(column, mean)
    return row, column


class ExactBaseline:
    """Eager's values at an integer or bool leaf, and where the noise flips them."""

    def __init__(self, eager: torch.Tensor) -> None:
        self.eager = eager.detach()
        self.dtype = eager.dtype
        self.shape = tuple(eager.shape)
        self.flips: torch.Tensor | None = None
        self.samples = 0

    def add(self, sample: torch.Tensor, *, amplitude: float = 1.0) -> None:
        """Count one noise run (of any amplitude: a flip is a flip)."""
        self.samples += 1
        flips = sample.detach() != self.eager
        if bool(flips.any()):
            self.flips = flips if self.flips is None else self.flips | flips
