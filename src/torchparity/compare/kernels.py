"""One pass over memory for each thing that is asked of a leaf on a GPU: beginning, adding a sample, judging.

The plain form of all of it stands in `statistics.py` and `judgement.py`; here it is fused. A program goes down some
rows of a strip; what it sums is float32 while it stays in its registers, and is written once, in parts that are summed
in float64 afterwards: no program waits for another, and the same numbers give the same sums. What is not finite is only
noticed: the plain form knows what to do. Imported where Triton is, and only for leaves on a device that it knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from torchparity.compare.room import Room
from torchparity.compare.sum_kernels import FACTS, SCORED, TOLD, around, close, count, short
from torchparity.compare.tiles import LONGEST, Cut, Whole, keep_column, keep_fact, keep_row

__all__ = ["FACTS", "SCORED", "add", "around", "begin", "judge", "keep", "short", "try_out"]

# Elements of a tile: a row of a strip, or several short ones; a judgement has more to hold of each.
TILE = 512
JUDGED_TILE = 256
# The number of a tile, and a count of tiles, have room in so many bits.
TURN_BITS = (LONGEST - 1).bit_length()
COUNT_BITS = LONGEST.bit_length()
# How far the largest value may be from what a few of them tell, so that squares stay within float32.
FAR = 2.0**40


@triton.jit
def begin_kernel(
    eager, truth, correction, row_parts, column_parts, facts, tiny, shrink,
    rows, columns, eager_row, eager_column, truth_row, truth_column, loops, strips,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Correction, energies, and three facts: the largest value, whether one is subnormal, the error."""
    across = (tl.program_id(0) % strips).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    level = (tl.program_id(0) // strips).to(tl.int64)
    column = tl.zeros((HEIGHT, WIDTH), tl.float32)
    peak = tl.zeros((HEIGHT, WIDTH), tl.float32)
    least = tl.zeros((HEIGHT, WIDTH), tl.int32)
    error = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for turn in range(loops):
        down = (level * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        value = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        value = value.to(tl.float32)
        size = tl.abs(value)
        least |= tl.where((size > 0) & (size < tiny), 1, 0)
        if HAS_TRUTH:
            place = truth + down[:, None] * truth_row + across[None, :] * truth_column
            off = (tl.load(place, inside, other=0.0).to(tl.float64) - value.to(tl.float64)).to(tl.float32)
            error += (off * shrink) * (off * shrink)
            kept = off.to(correction.dtype.element_ty)
            tl.store(correction + down[:, None] * columns + across[None, :], kept, inside)
        peak = tl.maximum(peak, size)
        energy = (value * shrink) * (value * shrink)
        keep_row(row_parts, 0, strips, down, rows, energy)
        column += energy
    keep_column(column_parts, 0, strips, across, columns, column)
    keep_fact(facts, 0, tl.max(peak))
    keep_fact(facts, 1, tl.max(least).to(tl.float32))
    keep_fact(facts, 2, tl.sum(error))


@triton.jit
def add_kernel(
    sample, eager, correction, squares, row_parts, column_parts, scale, shrink,
    rows, columns, sample_row, sample_column, eager_row, eager_column, loops, strips,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the squares of a sample's difference; sum it over rows and columns, itself, times eager, and squared.

    Where something is not finite, so is a sum; the squares leave it out.
    """
    across = (tl.program_id(0) % strips).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    level = (tl.program_id(0) // strips).to(tl.int64)
    column = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column_dot = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column_square = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for turn in range(loops):
        down = (level * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        place = down[:, None] * columns + across[None, :]
        value = tl.load(sample + down[:, None] * sample_row + across[None, :] * sample_column, inside, other=0.0)
        base = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        base = base.to(tl.float32)
        off = value.to(tl.float32) - base
        if HAS_TRUTH:
            off -= tl.load(correction + place, inside, other=0.0).to(tl.float32)
        square = tl.where(tl.abs(off) < float("inf"), off * scale, 0.0)
        square = square * square
        held = tl.load(squares + place, inside, other=0.0).to(tl.float32) + square
        tl.store(squares + place, held.to(squares.dtype.element_ty), inside)
        off = off * shrink
        dot = off * (base * shrink)
        keep_row(row_parts, 0, strips, down, rows, off)
        keep_row(row_parts, 1, strips, down, rows, dot)
        keep_row(row_parts, 2, strips, down, rows, square)
        column += off
        column_dot += dot
        column_square += square
    keep_column(column_parts, 0, strips, across, columns, column)
    keep_column(column_parts, 1, strips, across, columns, column_dot)
    keep_column(column_parts, 2, strips, across, columns, column_square)


@triton.jit
def allowance(base, own, lends, sizes, unit, half, lent, tiny):
    """One noise unit for each element: its own spread, its neighbours', and the rounding floor; capped."""
    size = tl.abs(base)
    allowed = tl.sqrt(own + lends) * unit + half * size + half * sizes
    cap = (tl.sqrt(own) * unit + 2 * half * size) * lent
    return tl.where(size > 0, tl.minimum(allowed, cap), allowed) + tiny


@triton.jit
def judge_kernel(
    candidate, eager, correction, squares, row_noise, column_noise, row_scale, column_scale,
    row_parts, column_parts, facts, places, share, unit, half, tiny, lent, threshold, seen, shrink,
    rows, columns, candidate_row, candidate_column, eager_row, eager_column, loops, strips,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TURN_BITS: tl.constexpr, COUNT_BITS: tl.constexpr,
):  # fmt: skip
    """Judge every element; sum differences over rows and columns, themselves and times eager, and squared over rows.

    `facts` are how many elements are not eager's, how many are off by more than `seen`, how many are wrong, and the
    worst: the bits of its score, of which the last few tell the tile where it was met. Where something is not finite,
    so is a sum.
    """
    across = (tl.program_id(0) % strips).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    level = (tl.program_id(0) // strips).to(tl.int64)
    column = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column_dot = tl.zeros((HEIGHT, WIDTH), tl.float32)
    counts = tl.zeros((HEIGHT, WIDTH), tl.int32)  # Three of them, one above the other.
    worst = tl.full((HEIGHT, WIDTH), -1, tl.int32)  # What lies outside is less than anything inside.
    column_lends = tl.load(column_noise + across, across < columns, other=0.0)
    column_size = tl.load(column_scale + across, across < columns, other=0.0)
    for turn in range(loops):
        down = (level * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        place = down[:, None] * columns + across[None, :]
        at = candidate + down[:, None] * candidate_row + across[None, :] * candidate_column
        value = tl.load(at, inside, other=0.0)
        base = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        counts += tl.where(value == base, 0, 1)
        base = base.to(tl.float32)
        off = value.to(tl.float32) - base
        if HAS_TRUTH:
            off -= tl.load(correction + place, inside, other=0.0).to(tl.float32)
        lends = tl.load(row_noise + down, down < rows, other=0.0)[:, None] * column_lends[None, :]
        sizes = tl.load(row_scale + down, down < rows, other=0.0)[:, None] * column_size[None, :]
        own = tl.load(squares + place, inside, other=0.0).to(tl.float32) * share
        ratio = tl.abs(off) / allowance(base, own, lends, sizes, unit, half, lent, tiny)
        counts += tl.where(tl.abs(off) > seen, 1 << COUNT_BITS, 0)
        counts += tl.where(ratio > threshold, 1 << (2 * COUNT_BITS), 0)
        met = ((ratio.to(tl.int32, bitcast=True) >> TURN_BITS) << TURN_BITS) | turn
        worst = tl.maximum(worst, tl.where(inside, met, -1))
        off = off * shrink
        dot = off * (base * shrink)
        keep_row(row_parts, 0, strips, down, rows, off)
        keep_row(row_parts, 1, strips, down, rows, dot)
        keep_row(row_parts, 2, strips, down, rows, off * off)
        column += off
        column_dot += dot
    keep_column(column_parts, 0, strips, across, columns, column)
    keep_column(column_parts, 1, strips, across, columns, column_dot)
    most = (1 << COUNT_BITS) - 1
    keep_fact(facts, 0, tl.sum(counts & most))
    keep_fact(facts, 1, tl.sum((counts >> COUNT_BITS) & most))
    keep_fact(facts, 2, tl.sum(counts >> (2 * COUNT_BITS)))
    top = tl.max(worst)
    keep_fact(facts, 3, top)
    met = (worst & ((1 << TURN_BITS) - 1)).to(tl.int64)
    first = (level * loops + met) * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    keep_fact(places, 0, tl.max(tl.where(worst == top, first * columns + across[None, :], -1)))


@dataclass(frozen=True)
class Begun:
    """What is known of a leaf before any sample; `usable` where everything about it is finite and normal."""

    usable: bool
    correction: torch.Tensor | None
    energies: Whole
    peak: float
    energy: float
    error: float


@dataclass(frozen=True)
class Judged:
    """What one pass over a candidate has shown, on its device still: nobody has waited for it yet.

    `told` are the energy (not finite where something is not), how many elements are not eager's, how many are off by
    more than what is seen, how many are wrong, the worst score, its place, eager's and the candidate's error there, and
    where rows and columns are `short` the scores of six sums; `sums` are what those were, in their own units.
    """

    whole: Whole
    told: torch.Tensor
    magnitude: float

    @property
    def sums(self) -> torch.Tensor:
        """The sums in their own units, one after the other: of differences, by rows and columns, and of products."""
        return enlarged(self.whole, self.magnitude)


def begin(room: Room, eager: torch.Tensor, truth: torch.Tensor | None, tiny: float) -> Begun:
    """Take eager and the truth in; corrections are kept no more exactly than the leaf's dtype asks for."""
    cut = Cut.of(eager, TILE)
    magnitude = near(eager)
    kept = torch.float32 if eager.dtype == torch.float32 else torch.bfloat16
    held = eager if truth is None else truth
    correction = torch.empty(eager.shape, dtype=kept, device=eager.device) if truth is not None else None
    *parts, found = room.pieces(*cut.parts(1, 1), (3 * cut.programs, torch.float32))
    begin_kernel[(cut.programs,)](
        eager, held, correction if correction is not None else eager, *parts, found, tiny, 1.0 / magnitude,
        cut.rows, cut.columns, *eager.stride(), *held.stride(), cut.loops, cut.strips,
        HAS_TRUTH=truth is not None, **cut.shape,
    )  # fmt: skip
    size, dtype = cut.sums(1, 1)
    energies = Whole(cut, 1, 1, torch.empty(size, dtype=dtype, device=eager.device)).add_up(*parts)
    facts = found.view(3, cut.programs)
    totals = torch.stack([facts[2].sum(dtype=torch.float64), energies.row.sum()])
    peak, least, error, energy = torch.cat([facts[:2].amax(1), totals]).tolist()
    square = magnitude**2
    usable = math.isfinite(error) and math.isfinite(energy) and least == 0
    usable &= 1.0 / FAR < (peak / magnitude if peak else 1.0) < FAR
    energies.flat.mul_(square)
    return Begun(usable, correction, energies, peak, energy * square, error * square)


def add(
    room: Room,
    sample: torch.Tensor,
    eager: torch.Tensor,
    correction: torch.Tensor | None,
    squares: torch.Tensor,
    scale: float,
    magnitude: float,
) -> Whole:
    """Add one sample to the squares; return the sums of its difference, of that times eager, and of its squares."""
    cut = Cut.of(eager, TILE)
    *parts, sums = room.pieces(*cut.parts(3, 3), cut.sums(3, 3))
    add_kernel[(cut.programs,)](
        sample, eager, correction if correction is not None else eager, squares, *parts, scale, 1.0 / magnitude,
        cut.rows, cut.columns, *sample.stride(), *eager.stride(), cut.loops, cut.strips,
        HAS_TRUTH=correction is not None, **cut.shape,
    )  # fmt: skip
    return Whole(cut, 3, 3, sums).add_up(*parts)


def keep(whole: Whole, kept: torch.Tensor, magnitude: float, weight: float) -> torch.Tensor:
    """Add the squares of a sample's sums to those that are kept, and its squares to their profile.

    Return whether everything is finite, on the device; where it is not, all sums count as zero.
    """
    rows, columns = whole.cut.rows, whole.cut.columns
    if short(rows, columns):
        return count(whole, kept, magnitude, weight)
    total = whole.row[:2].sum()
    finite = total - total == 0
    sums = torch.where(finite, enlarged(whole, magnitude), 0.0)
    scalars = torch.stack([sums[:rows].sum(), sums[rows + columns : 2 * rows + columns].sum()])
    kept[: 2 * (rows + columns)].addcmul_(sums, sums, value=weight)
    kept[-2:].addcmul_(scalars, scalars, value=weight)
    kept[2 * (rows + columns) : -2].add_(torch.cat([whole.row[2], whole.column[2]]))
    return finite


def judge(
    room: Room,
    candidate: torch.Tensor,
    eager: torch.Tensor,
    correction: torch.Tensor | None,
    squares: torch.Tensor,
    vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    numbers: tuple[float, float, float, float, float, float, float],
    known: tuple[torch.Tensor, torch.Tensor],
    sizes: tuple[float, float, float, float, float],
) -> Judged:
    """Hold a candidate against all that is known of a leaf.

    `vectors` are what neighbours lend, by rows and by columns, and how large they are; `numbers` are the share of one
    sample, the unit of the squares, half a rounding, the least step, how much may be lent, the threshold, and what
    nobody sees. `known` and `sizes` are what `close` wants to score sums by; the first size is the magnitude.
    """
    cut, magnitude = Cut.of(eager, JUDGED_TILE), sizes[0]
    *parts, held, facts, places, told = room.pieces(
        *cut.parts(3, 2), cut.sums(3, 2), (4 * cut.programs, torch.int32), (cut.programs, torch.int64), TOLD
    )
    judge_kernel[(cut.programs,)](
        candidate, eager, correction if correction is not None else eager, squares, *vectors, *parts, facts, places,
        *numbers, 1.0 / magnitude, cut.rows, cut.columns, *candidate.stride(), *eager.stride(), cut.loops, cut.strips,
        HAS_TRUTH=correction is not None, TURN_BITS=TURN_BITS, COUNT_BITS=COUNT_BITS, **cut.shape,
    )  # fmt: skip
    sums = Whole(cut, 3, 2, held).add_up(*parts)
    close(sums, (facts, places), (candidate, eager, correction), known, sizes, TURN_BITS, told)
    return Judged(sums, told if short(cut.rows, cut.columns) else told[:FACTS], magnitude)


def try_out(device: torch.device) -> None:
    """Raise where nothing can be compiled for a device: Triton wants a C compiler besides."""
    begin(Room(device), torch.ones(2, 2, device=device), None, 0.0)


def near(values: torch.Tensor) -> float:
    """Return a power of two somewhere near the size of what there is, by a few of it."""
    few = values[:: max(1, values.shape[0] // 32), :: max(1, values.shape[1] // 32)]
    size = few.abs().max().item()
    return float(2.0 ** math.frexp(size)[1]) if 0 < size < math.inf else 1.0


def enlarged(whole: Whole, magnitude: float) -> torch.Tensor:
    """Return sums in their own units, one after the other: of differences, by rows and columns, and of products."""
    first, second = torch.cat([whole.row[:2], whole.column[:2]], 1)
    return torch.cat([first * magnitude, second * magnitude**2])
