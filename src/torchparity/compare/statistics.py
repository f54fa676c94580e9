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

import copy
import functools
import math
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.matrices import Shape2d, Sums, as_real, least_step, matrix, power_near, working_dtype
from torchparity.compare.room import Room

# Share of the leaf's mean noise variance that every element is granted whatever its surroundings say.
POOL_SHARE = 0.1
# Neighbours may lend an element this many times its own noise.
LENT = 32.0
# Dtypes whose least numbers vector code may take for zero: a float32 kernel does that to its bfloat16 results too.
FLUSHES = (torch.float32, torch.float64, torch.bfloat16)
# What the kernels take: differences are taken in float32.
AT_ONCE = (torch.float32, torch.bfloat16, torch.float16)
# A row or column profile is an average; under this many terms it is too rough to be used.
PROFILE_TERMS = 16
# A compiler may be biased by one float32 rounding in everything it does (another exp, another
# order of a sum); roundings in the leaf's own dtype average out over the terms of a sum.
FLOAT32_ROUNDING = 2.0**-23


def leaf_kernels(kind: str) -> Any:
    """Return the same in one pass over memory, for devices that Triton knows; None where it is not to be had."""
    return torchapi.working_kernels(kind, "torchparity.compare.kernels")


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
        self.peak = 0.0
        self.correction: torch.Tensor | None = None
        self.truth: torch.Tensor | None = None
        self.finite: torch.Tensor | None = None
        self.noise_nonfinite: torch.Tensor | None = None
        self.error_energy: float | None = None
        # By rows, then by columns; only where kernels are at work.
        self.energies: torch.Tensor | None = None
        self._room: Room | None = None
        self._rms: float | None = None
        self.kernels: Any = leaf_kernels(self.device.type) if real.dtype in AT_ONCE and self.layout.total else None
        if self.kernels is not None and not self._begin_at_once(reference):
            self.kernels = None
        if self.kernels is None:
            self._split(reference)
            self.magnitude = self._magnitude()
            self.row_energy, self.column_energy = self._energies()
        self._squares: torch.Tensor | None = None
        self.kept = torch.zeros(3 * sum(self.eager.shape) + 2, dtype=torch.float64, device=self.device)
        self.sum_squares, self._profile = self._named()
        self.unit = self._unit()
        self.tiny = least_step(eager.dtype, self.work)
        self._pool: tuple[torch.Tensor, torch.Tensor] | None = None
        self._scale: tuple[torch.Tensor, torch.Tensor] | None = None
        self._units: dict[str, torch.Tensor] | None = None

    def _named(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return what is kept of samples: squares of sums by name, and the sums of all squares by rows and columns."""
        rows, columns = self.layout.rows, self.layout.columns
        *squares, profile, mean, scale = self.kept.split([rows, columns, rows, columns, rows + columns, 1, 1])
        names = ("row mean", "column mean", "row scale", "column scale", "mean", "scale")
        return dict(zip(names, (*squares, mean, scale), strict=True)), profile

    def _split(self, reference: torch.Tensor | None) -> None:
        """Hold the truth as a correction to eager, or whole where something is not finite."""
        truth = None if reference is None else matrix(reference, self.layout)
        correction: torch.Tensor | None = None
        if truth is not None:
            correction = torch.empty(truth.shape, dtype=self.work, device=self.device)
            for rows, columns in self.layout.blocks(self.device):
                correction[rows, columns] = truth[rows, columns] - self.eager[rows, columns]
        # What is not finite in either is not finite in the difference.
        if all_finite(self.eager if correction is None else correction):
            self.correction = correction
            return
        if truth is not None and all_finite(self.eager) and all_finite(truth):  # So far apart that float32 overflows.
            self.correction = correction
            return
        self.truth = self.eager.to(torch.float64) if truth is None else truth.to(torch.float64)
        self.finite = torch.isfinite(self.eager) & torch.isfinite(self.truth)

    def _begin_at_once(self, reference: torch.Tensor | None) -> bool:
        """Do all of the beginning in one pass; return False where something is not finite or not normal."""
        truth = None if reference is None else matrix(reference, self.layout)
        begun = self.kernels.begin(self.room(), self.eager, truth, self._least_normal())
        self.correction, self.energies = begun.correction, begun.energies.flat
        self.row_energy, self.column_energy = begun.energies.row[0], begun.energies.column[0]
        self.peak, self.error_energy, self.magnitude = begun.peak, begun.error, power_near(begun.peak)
        self._rms = math.sqrt(begun.energy / self.layout.total) if begun.usable else None
        if not begun.usable:
            self.correction = self.error_energy = None
            self.peak = 0.0
        return bool(begun.usable)

    def room(self) -> Room:
        """Return what kernels leave their sums in, which other leaves share; it is kept as long as this leaf."""
        self._room = Room.of(self.device)
        return self._room

    @property
    def squares(self) -> torch.Tensor:
        """The sum of squares of every element's differences, in units; no more exact than the leaf itself."""
        if self._squares is None:
            kept = self.work if self.kernels is None or self.dtype == torch.float32 else torch.bfloat16
            shape = (self.layout.rows, self.layout.columns)
            self._squares = torch.zeros(shape, dtype=kept, device=self.device)
        return self._squares

    def around(self, reference: torch.Tensor) -> FloatBaseline:
        """Return the same spread around another truth."""
        other = copy.copy(self)
        other.kernels = other.error_energy = None
        other.correction = other.truth = other.finite = None
        other._split(reference)
        return other

    def _magnitude(self) -> float:
        """A power of two near the largest value, by which products are scaled so that they stay in range."""
        largest = 0.0
        for rows, columns in self.layout.blocks(self.device):
            largest = max(largest, float(self.block(rows, columns).abs().max()))
        self.peak = largest
        return power_near(largest)

    def _energies(self) -> tuple[torch.Tensor, torch.Tensor]:
        sums = Sums.zeros(self.layout, self.device, self.magnitude)
        for rows, columns in self.layout.blocks(self.device):
            block = self.block(rows, columns)
            sums.add(rows, columns, block, block)
        return sums.row_dot, sums.column_dot

    def _unit(self) -> float:
        """A power of two near the rounding step of the leaf, so that squares neither over- nor underflow."""
        rms = self.rms()
        return 2.0 ** max(-120, math.floor(math.log2(rms * self.epsilon))) if rms > 0 else 1.0

    def _least_normal(self) -> float:
        """The least normal number, where vector code may take less for zero; else none is too small."""
        return float(torch.finfo(self.dtype).tiny) if self.dtype in FLUSHES else 0.0

    @functools.cached_property
    def has_least(self) -> bool:
        """Whether some value is less than the least normal number, so that vector code may flush it to zero."""
        if self.dtype not in FLUSHES:
            return False
        tiny = torch.finfo(self.dtype).tiny
        blocks = (self.block(rows, columns).abs() for rows, columns in self.layout.blocks(self.device))
        return any(bool(((block > 0) & (block < tiny)).any()) for block in blocks)

    def rms(self) -> float:
        """Root mean square of eager's finite values."""
        if self._rms is None:
            self._rms = math.sqrt(float(self.row_energy.sum()) / max(1, self.layout.total))
        return self._rms

    def block(self, rows: slice, columns: slice) -> torch.Tensor:
        """Eager's values of one block in working precision, zero where not finite."""
        block = self.eager[rows, columns].to(self.work)
        if self.truth is not None:
            block = torch.where(torch.isfinite(block), block, self.truth[rows, columns].to(self.work))
            block = torch.nan_to_num_(block, nan=0.0, posinf=0.0, neginf=0.0)
        return block

    def difference(
        self, sample: torch.Tensor, rows: slice | torch.Tensor, columns: slice | torch.Tensor
    ) -> torch.Tensor:
        """Sample minus truth over one block, or at some places; zero where either is not finite."""
        values = sample[rows, columns].to(self.work)
        if self.truth is None:
            difference = values - self.eager[rows, columns].to(self.work)
            if self.correction is not None:
                difference -= self.correction[rows, columns]
            return difference
        difference = (values.double() - self.truth[rows, columns]).to(self.work)
        return torch.nan_to_num_(difference, nan=0.0, posinf=0.0, neginf=0.0)

    def distance(self, sample: torch.Tensor, places: torch.Tensor | slice) -> torch.Tensor:
        """How far a sample lies from the truth at some places of the flat leaf; the largest number where not finite."""
        values = matrix(sample, self.layout).reshape(-1)[places].double()
        if self.truth is not None:
            truth = self.truth.reshape(-1)[places]
        else:
            truth = self.eager.reshape(-1)[places].double()
            if self.correction is not None:
                truth = truth + self.correction.reshape(-1)[places].double()
        return torch.nan_to_num_((values - truth).abs_(), nan=torch.finfo(torch.float64).max)

    def add(self, sample: torch.Tensor, *, amplitude: float = 1.0) -> None:
        """Count one run of the model whose operations were perturbed by `amplitude` roundings."""
        values = matrix(sample, self.layout)
        if self.kernels is not None and values.dtype == self.eager.dtype:
            self._add_at_once(values, amplitude)
            return
        sums = Sums.zeros(self.layout, self.device, self.magnitude)
        for rows, columns in self.layout.blocks(self.device):
            difference = self.difference(values, rows, columns)
            if self.finite is not None:
                self._note_nonfinite(rows, columns, ~torch.isfinite(values[rows, columns]) & self.finite[rows, columns])
            elif not math.isfinite(energy(difference)):
                wild = ~torch.isfinite(difference)
                self._note_nonfinite(rows, columns, wild)
                difference.masked_fill_(wild, 0.0)
            sums.add(rows, columns, difference, self.block(rows, columns))
            difference.mul_(1.0 / (amplitude * self.unit))
            self.squares[rows, columns].addcmul_(difference, difference)
        self.samples += 1
        self._count(sums, amplitude)

    def _add_at_once(self, values: torch.Tensor, amplitude: float) -> None:
        """Count a run in one pass; only where something of it is not finite, another one tells where."""
        squares = self.squares
        scale = 1.0 / (amplitude * self.unit)
        added = self.kernels.add(self.room(), values, self.eager, self.correction, squares, scale, self.magnitude)
        finite = self.kernels.keep(added, self.kept, self.magnitude, amplitude**-2)
        self.samples += 1
        self._pool = self._units = None
        if finite.item():  # All that there is to do is asked for before the device is waited for.
            return
        sums = Sums.zeros(self.layout, self.device, self.magnitude)
        for rows, columns in self.layout.blocks(self.device):
            difference = self.difference(values, rows, columns)
            wild = ~torch.isfinite(difference)
            self._note_nonfinite(rows, columns, wild)
            sums.add(rows, columns, difference.masked_fill_(wild, 0.0), self.block(rows, columns))
        self._count(sums, amplitude)

    def _count(self, sums: Sums, amplitude: float) -> None:
        for name, vector in sums.vectors().items():
            self.sum_squares[name].addcmul_(vector, vector, value=amplitude**-2)
        self._pool = self._units = None

    def _note_nonfinite(self, rows: slice, columns: slice, wild: torch.Tensor) -> None:
        if self.noise_nonfinite is None:
            self.noise_nonfinite = torch.zeros_like(self.eager, dtype=torch.bool)
        self.noise_nonfinite[rows, columns] |= wild

    def allowance(self, rows: slice, columns: slice) -> torch.Tensor:
        """One noise unit for each element of a block: its own spread, its neighbours', and the rounding floor."""
        row_noise, column_noise = self.pool()
        row_scale, column_scale = self.scales()
        variance = torch.addr(
            self.squares[rows, columns].to(self.work),
            row_noise[rows],
            column_noise[columns],
            beta=1.0 / max(1, self.samples),
        )
        allowance = variance.sqrt_()
        if self.unit != 1.0:
            allowance.mul_(self.unit)
        half = self.epsilon / 2
        allowance.add_(self.block(rows, columns).abs(), alpha=half)
        allowance.addr_(row_scale[rows], column_scale[columns], alpha=half)
        return self._capped(allowance, rows, columns).add_(self.tiny)

    def _capped(self, allowance: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """Let neighbours lend an element at most so many times its own noise: -1e9 in a mask must not hide the rest.

        An exact zero has no noise of its own to go by (a ReLU's other side) and keeps what its neighbours lend.
        """
        size = self.block(rows, columns).abs()
        own = self.squares[rows, columns].to(self.work).mul(1.0 / max(1, self.samples)).sqrt_().mul_(self.unit)
        own.add_(size, alpha=self.epsilon).mul_(LENT)
        return torch.where(size > 0, torch.minimum(allowance, own), allowance)

    def aggregate_units(self) -> dict[str, torch.Tensor]:
        """Return one unit of score for each sum that has enough terms to mean something: its noise, and its floor."""
        if self._units is None:
            self._units = {}
            for name, floor in self._floors.items():
                variance = self.sum_squares[name] / self.samples
                unit = (variance + variance.mean()).sqrt() + floor
                self._units[name] = unit.clamp_(min=torch.finfo(unit.dtype).tiny)
        return self._units

    @functools.cached_property
    def _axes(self) -> tuple[str, ...]:
        """Whose sums have enough terms to mean something: rows, columns."""
        rows, columns = self.layout.rows, self.layout.columns
        sizes = {"row": (columns, rows), "column": (rows, columns)}
        return tuple(axis for axis, (terms, count) in sizes.items() if terms >= PROFILE_TERMS and count > 1)

    @property
    def scored(self) -> tuple[str, ...]:
        """The sums that have a score, by name."""
        if self.layout.total < PROFILE_TERMS or not self.samples:
            return ()
        return ("mean", "scale", *(f"{axis} {what}" for what in ("mean", "scale") for axis in self._axes))

    def share(self, terms: int) -> float:
        """Return what correct roundings alone may add to a sum, as a share of it."""
        return max(self.epsilon / 2 / math.sqrt(terms), min(self.epsilon, FLOAT32_ROUNDING))

    @functools.cached_property
    def _floors(self) -> dict[str, torch.Tensor]:
        """Return what correct roundings alone may add to each sum."""
        layout = self.layout
        whole = self.row_energy.sum().reshape(1)
        floors = {
            "mean": self.share(layout.total) * (whole * layout.total).sqrt(),
            "scale": self.share(layout.total) * whole,
        }
        for axis in self._axes:
            terms, energies = (layout.columns, self.row_energy) if axis == "row" else (layout.rows, self.column_energy)
            local = energies + 0.1 * energies.mean()
            floors[f"{axis} mean"] = self.share(terms) * (local * terms).sqrt()
            floors[f"{axis} scale"] = self.share(terms) * local
        return floors

    def pool(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors whose outer product is the mean noise around each element, in squared units."""
        if self._pool is None:
            sums = self._profile
            if self.kernels is None:
                sums = torch.cat([self.squares.sum(axis, dtype=self.work).double() for axis in (1, 0)])
            self._pool = self._around(sums, 1.0 / max(1, self.samples), POOL_SHARE, root=False)
        return self._pool

    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors whose outer product is how large eager's values are around each element."""
        if self._scale is None:
            energies = torch.cat([self.row_energy, self.column_energy]) if self.energies is None else self.energies
            self._scale = self._around(energies, 1.0, 0.0, root=True)
        return self._scale

    def _around(
        self, sums: torch.Tensor, share: float, lent: float, *, root: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return vectors whose outer product models a matrix of which the sums over rows and columns are known."""
        rows, columns = self.layout.rows, self.layout.columns
        if self.kernels is not None and self.kernels.short(rows, columns):
            kept = share / columns, share / rows
            vectors = self.kernels.around(sums, (rows, columns), kept, math.sqrt(lent), PROFILE_TERMS, root=root)
        else:
            row, column = sums[:rows] * (share / columns), sums[rows:] * (share / rows)
            vectors = outer_profile(row, column, self.layout, lent)
            vectors = tuple((vector.sqrt() if root else vector).to(self.work) for vector in vectors)
        row, column = vectors
        return row, column


def all_finite(values: torch.Tensor) -> bool:
    """Tell whether no element is NaN or Inf (a sum tells, unless finite values overflow it)."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def energy(difference: torch.Tensor) -> float:
    """Sum of squares; not finite where an element is not."""
    flat = difference.reshape(-1)
    return float(torch.dot(flat, flat))


def outer_profile(
    row: torch.Tensor, column: torch.Tensor, layout: Shape2d, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors whose outer product models a matrix with these row and column means.

    A profile that is the average of too few terms is flattened. Every row and column gets at least
    `share` of the mean, so that one loud row cannot hide the quiet ones nor leave them nothing.
    """
    mean = row.mean() if row.numel() else row.sum()
    if layout.columns < PROFILE_TERMS:
        row = mean.expand_as(row)
    if layout.rows < PROFILE_TERMS:
        column = mean.expand_as(column)
    floor = math.sqrt(share) * mean
    return row + floor, (column + floor) / torch.where(mean == 0, 1.0, mean)  # Where all is zero, so is the mean.
