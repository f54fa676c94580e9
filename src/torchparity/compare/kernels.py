"""One pass over memory for each thing that is asked of a leaf on a GPU: beginning, adding a sample, judging.

The plain form of all of it stands in `statistics.py` and `judgement.py`; here it is fused. Sums over rows and columns
are float64, so that nothing has to be scaled. What is not finite is only noticed: the plain form knows what to do.
Imported where Triton is, and only for leaves on a device that it knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

TILE = 2048
WIDEST = 256
# Tiles that one program goes down, so that sums over columns leave its registers once; and how many programs there
# should be at least, so that every core has several.
LONGEST = 32
PROGRAMS = 1024
WARPS = 8


@dataclass(frozen=True)
class Cut:
    """How a matrix is cut into tiles."""

    rows: int
    columns: int
    height: int
    width: int
    loops: int

    @classmethod
    def of(cls, rows: int, columns: int) -> Cut:
        """Cut a matrix so that tiles are wide, and programs neither few nor short."""
        width = min(WIDEST, triton.next_power_of_2(max(1, columns)))
        height = max(1, TILE // width)
        across = math.ceil(columns / width)
        down = math.ceil(rows / height)
        loops = min(LONGEST, max(1, down * across // PROGRAMS))
        return cls(rows, columns, height, width, loops)

    @property
    def grid(self) -> tuple[int, int]:
        """How many programs there are, down and across."""
        return math.ceil(self.rows / (self.height * self.loops)), math.ceil(self.columns / self.width)

    @property
    def shape(self) -> dict[str, int]:
        """The tile as the kernels want it."""
        return {"HEIGHT": self.height, "WIDTH": self.width, "num_warps": WARPS}


@triton.jit
def begin_kernel(
    eager, truth, correction, row_energy, column_energy, facts, tiny,
    rows, columns, eager_row, eager_column, truth_row, truth_column, loops,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Correction, energies, and four facts: the largest value, what is not finite, what is subnormal, the error."""
    across = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    column_sum = tl.zeros((WIDTH,), tl.float64)
    peak = tl.zeros((HEIGHT, WIDTH), tl.float32)
    wild = tl.zeros((HEIGHT, WIDTH), tl.float32)
    least = tl.zeros((HEIGHT, WIDTH), tl.float32)
    error = tl.zeros((HEIGHT, WIDTH), tl.float64)
    for turn in range(loops):
        down = (tl.program_id(0).to(tl.int64) * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        value = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        wide = value.to(tl.float32).to(tl.float64)
        size = tl.abs(wide)
        wild = tl.maximum(wild, tl.where(size < float("inf"), 0.0, 1.0))
        least = tl.maximum(least, tl.where((size > 0) & (size < tiny), 1.0, 0.0))
        if HAS_TRUTH:
            place = truth + down[:, None] * truth_row + across[None, :] * truth_column
            off = tl.load(place, inside, other=0.0).to(tl.float64) - wide
            wild = tl.maximum(wild, tl.where(tl.abs(off) < float("inf"), 0.0, 1.0))
            error += off * off
            kept = off.to(tl.float32).to(correction.dtype.element_ty)
            tl.store(correction + down[:, None] * columns + across[None, :], kept, inside)
        peak = tl.maximum(peak, size.to(tl.float32))
        energy = wide * wide
        tl.atomic_add(row_energy + down, tl.sum(energy, 1), down < rows)
        column_sum += tl.sum(energy, 0)
    tl.atomic_add(column_energy + across, column_sum, across < columns)
    tl.atomic_max(facts, tl.max(peak).to(tl.float64))
    tl.atomic_max(facts + 1, tl.max(wild).to(tl.float64))
    tl.atomic_max(facts + 2, tl.max(least).to(tl.float64))
    tl.atomic_add(facts + 3, tl.sum(error))


@triton.jit
def add_kernel(
    sample, eager, correction, squares, sums, row_squares, column_squares, facts, scale,
    rows, columns, sample_row, sample_column, eager_row, eager_column, loops,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the squares of a sample's difference, and its sums: `sums` holds rows, columns, and both times eager."""
    across = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    column = tl.zeros((WIDTH,), tl.float64)
    column_dot = tl.zeros((WIDTH,), tl.float64)
    column_square = tl.zeros((WIDTH,), tl.float64)
    wild = tl.zeros((HEIGHT, WIDTH), tl.float32)
    total = rows + columns
    for turn in range(loops):
        down = (tl.program_id(0).to(tl.int64) * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        place = down[:, None] * columns + across[None, :]
        value = tl.load(sample + down[:, None] * sample_row + across[None, :] * sample_column, inside, other=0.0)
        base = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        base = base.to(tl.float32)
        off = value.to(tl.float32) - base
        if HAS_TRUTH:
            off -= tl.load(correction + place, inside, other=0.0).to(tl.float32)
        good = tl.abs(off) < float("inf")
        wild = tl.maximum(wild, tl.where(good, 0.0, 1.0))
        off = tl.where(good, off, 0.0)
        far = off.to(tl.float64)
        dot = far * base.to(tl.float64)
        unit = off * scale
        held = tl.load(squares + place, inside, other=0.0).to(tl.float32) + unit * unit
        tl.store(squares + place, held.to(squares.dtype.element_ty), inside)
        square = (unit * unit).to(tl.float64)
        tl.atomic_add(sums + down, tl.sum(far, 1), down < rows)
        tl.atomic_add(sums + total + down, tl.sum(dot, 1), down < rows)
        tl.atomic_add(row_squares + down, tl.sum(square, 1), down < rows)
        column += tl.sum(far, 0)
        column_dot += tl.sum(dot, 0)
        column_square += tl.sum(square, 0)
    tl.atomic_add(sums + rows + across, column, across < columns)
    tl.atomic_add(sums + total + rows + across, column_dot, across < columns)
    tl.atomic_add(column_squares + across, column_square, across < columns)
    tl.atomic_max(facts, tl.max(wild).to(tl.float64))


@triton.jit
def judge_kernel(
    candidate, eager, correction, squares, row_noise, column_noise, row_scale, column_scale,
    sums, facts, best, place_of_best, share, unit, half, tiny, lent, threshold,
    rows, columns, candidate_row, candidate_column, eager_row, eager_column, loops,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Judge every element; `facts` are: not finite, the largest difference, energy, wrong and changed elements."""
    across = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    column = tl.zeros((WIDTH,), tl.float64)
    column_dot = tl.zeros((WIDTH,), tl.float64)
    wild = tl.zeros((HEIGHT, WIDTH), tl.float32)
    largest = tl.zeros((HEIGHT, WIDTH), tl.float32)
    energy = tl.zeros((HEIGHT, WIDTH), tl.float64)
    wrong = tl.zeros((HEIGHT, WIDTH), tl.float32)
    changed = tl.zeros((HEIGHT, WIDTH), tl.float32)
    worst = tl.zeros((HEIGHT, WIDTH), tl.float32)
    met = tl.zeros((HEIGHT, WIDTH), tl.int32)
    total = rows + columns
    column_lends = tl.load(column_noise + across, across < columns, other=0.0)
    column_size = tl.load(column_scale + across, across < columns, other=0.0)
    for turn in range(loops):
        down = (tl.program_id(0).to(tl.int64) * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        place = down[:, None] * columns + across[None, :]
        at = candidate + down[:, None] * candidate_row + across[None, :] * candidate_column
        value = tl.load(at, inside, other=0.0)
        base = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        changed += tl.where(value == base, 0.0, 1.0)
        base = base.to(tl.float32)
        off = value.to(tl.float32) - base
        if HAS_TRUTH:
            off -= tl.load(correction + place, inside, other=0.0).to(tl.float32)
        good = tl.abs(off) < float("inf")
        wild = tl.maximum(wild, tl.where(good, 0.0, 1.0))
        off = tl.where(good, off, 0.0)
        far = off.to(tl.float64)
        dot = far * base.to(tl.float64)
        tl.atomic_add(sums + down, tl.sum(far, 1), down < rows)
        tl.atomic_add(sums + total + down, tl.sum(dot, 1), down < rows)
        column += tl.sum(far, 0)
        column_dot += tl.sum(dot, 0)
        energy += far * far
        off = tl.abs(off)
        largest = tl.maximum(largest, off)
        row_lends = tl.load(row_noise + down, down < rows, other=0.0)
        row_size = tl.load(row_scale + down, down < rows, other=0.0)
        own = tl.load(squares + place, inside, other=0.0).to(tl.float32) * share
        size = tl.abs(base)
        allowed = tl.sqrt(own + row_lends[:, None] * column_lends[None, :]) * unit
        allowed += half * size + half * row_size[:, None] * column_size[None, :]
        cap = (tl.sqrt(own) * unit + 2 * half * size) * lent
        allowed = tl.where(size > 0, tl.minimum(allowed, cap), allowed) + tiny
        ratio = tl.where(inside, off / allowed, 0.0)
        wrong += tl.where(ratio > threshold, 1.0, 0.0)
        met = tl.where(ratio > worst, turn, met)
        worst = tl.maximum(worst, ratio)
    tl.atomic_add(sums + rows + across, column, across < columns)
    tl.atomic_add(sums + total + rows + across, column_dot, across < columns)
    tl.atomic_max(facts, tl.max(wild).to(tl.float64))
    tl.atomic_max(facts + 1, tl.max(largest).to(tl.float64))
    tl.atomic_add(facts + 2, tl.sum(energy))
    tl.atomic_add(facts + 3, tl.sum(wrong).to(tl.float64))
    tl.atomic_add(facts + 4, tl.sum(changed).to(tl.float64))
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    top = tl.max(worst)
    tl.store(best + program, top)
    first = (tl.program_id(0).to(tl.int64) * loops + met) * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    tl.store(place_of_best + program, tl.max(tl.where(worst == top, first * columns + across[None, :], -1)))


@dataclass(frozen=True)
class Begun:
    """What is known of a leaf before any sample; `usable` where everything about it is finite and normal."""

    usable: bool
    correction: torch.Tensor | None
    row_energy: torch.Tensor
    column_energy: torch.Tensor
    peak: float
    error: float


@dataclass(frozen=True)
class Judged:
    """What one pass over a candidate has shown; `usable` where everything about it is finite."""

    usable: bool
    identical: bool
    sums: torch.Tensor
    largest: float
    energy: float
    wrong: int
    score: float
    position: int


def begin(eager: torch.Tensor, truth: torch.Tensor | None, tiny: float) -> Begun:
    """Take eager and the truth in; corrections are kept no more exactly than the leaf's dtype asks for."""
    cut = Cut.of(*eager.shape)
    kept = torch.float32 if eager.dtype == torch.float32 else torch.bfloat16
    held = eager if truth is None else truth
    correction = torch.empty(eager.shape, dtype=kept, device=eager.device) if truth is not None else None
    row, column = vector(cut.rows, eager), vector(cut.columns, eager)
    facts = vector(4, eager)
    begin_kernel[cut.grid](
        eager, held, correction if correction is not None else eager, row, column, facts, tiny,
        cut.rows, cut.columns, *eager.stride(), *held.stride(), cut.loops, HAS_TRUTH=truth is not None, **cut.shape,
    )  # fmt: skip
    peak, wild, least, error = facts.tolist()
    return Begun(wild == 0 and least == 0, correction, row, column, peak, error)


def add(
    sample: torch.Tensor,
    eager: torch.Tensor,
    correction: torch.Tensor | None,
    squares: torch.Tensor,
    profile: tuple[torch.Tensor, torch.Tensor],
    scale: float,
) -> tuple[torch.Tensor, bool]:
    """Add one sample; return its sums, and whether all of it was finite."""
    cut = Cut.of(*eager.shape)
    sums, facts = vector(2 * (cut.rows + cut.columns), eager), vector(1, eager)
    add_kernel[cut.grid](
        sample, eager, correction if correction is not None else eager, squares, sums, *profile, facts, scale,
        cut.rows, cut.columns, *sample.stride(), *eager.stride(), cut.loops,
        HAS_TRUTH=correction is not None, **cut.shape,
    )  # fmt: skip
    return sums, facts.item() == 0


def judge(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    correction: torch.Tensor | None,
    squares: torch.Tensor,
    vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    numbers: tuple[float, float, float, float, float, float],
) -> Judged:
    """Hold a candidate against all that is known of a leaf.

    `vectors` are what neighbours lend, by rows and by columns, and how large they are; `numbers` are the share of one
    sample, the unit of the squares, half a rounding, the least step, how much may be lent, and the threshold.
    """
    cut = Cut.of(*eager.shape)
    programs = math.prod(cut.grid)
    sums, facts = vector(2 * (cut.rows + cut.columns), eager), vector(5, eager)
    best = torch.zeros(programs, dtype=torch.float32, device=eager.device)
    places = torch.zeros(programs, dtype=torch.int64, device=eager.device)
    judge_kernel[cut.grid](
        candidate, eager, correction if correction is not None else eager, squares, *vectors, sums, facts, best, places,
        *numbers, cut.rows, cut.columns, *candidate.stride(), *eager.stride(), cut.loops,
        HAS_TRUTH=correction is not None, **cut.shape,
    )  # fmt: skip
    at = best.argmax()
    found = torch.cat([facts, best[at].double().reshape(1), places[at].double().reshape(1)]).tolist()
    wild, largest, energy, wrong, changed, score, position = found
    return Judged(
        usable=wild == 0,
        identical=changed == 0,
        sums=sums,
        largest=largest,
        energy=energy,
        wrong=int(wrong),
        score=score,
        position=int(position),
    )


def vector(size: int, like: torch.Tensor) -> torch.Tensor:
    """Return zeros to add to."""
    return torch.zeros(size, dtype=torch.float64, device=like.device)
