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

TILE = 1024
WIDEST = 1024
# Tiles that one program goes down, so that sums over columns leave its registers once; and how many programs there
# should be at least, so that every core has several.
LONGEST = 64
PROGRAMS = 1024
# How far the largest value may be from what a few of them tell, so that squares stay within float32.
FAR = 2.0**40
WARPS = 4


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
    eager, truth, correction, row_energy, column_energy, facts, tiny, shrink,
    rows, columns, eager_row, eager_column, truth_row, truth_column, loops,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Correction, energies, and four facts: the largest value, what is not finite, what is subnormal, the error."""
    across = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    column_sum = tl.zeros((HEIGHT, WIDTH), tl.float32)
    peak = tl.zeros((HEIGHT, WIDTH), tl.float32)
    wild = tl.zeros((HEIGHT, WIDTH), tl.float32)
    least = tl.zeros((HEIGHT, WIDTH), tl.float32)
    error = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for turn in range(loops):
        down = (tl.program_id(0).to(tl.int64) * loops + turn) * HEIGHT + tl.arange(0, HEIGHT)
        inside = (down[:, None] < rows) & (across[None, :] < columns)
        value = tl.load(eager + down[:, None] * eager_row + across[None, :] * eager_column, inside, other=0.0)
        value = value.to(tl.float32)
        size = tl.abs(value)
        wild = tl.maximum(wild, tl.where(size < float("inf"), 0.0, 1.0))
        least = tl.maximum(least, tl.where((size > 0) & (size < tiny), 1.0, 0.0))
        if HAS_TRUTH:
            place = truth + down[:, None] * truth_row + across[None, :] * truth_column
            off = (tl.load(place, inside, other=0.0).to(tl.float64) - value.to(tl.float64)).to(tl.float32)
            wild = tl.maximum(wild, tl.where(tl.abs(off) < float("inf"), 0.0, 1.0))
            error += (off * shrink) * (off * shrink)
            kept = off.to(correction.dtype.element_ty)
            tl.store(correction + down[:, None] * columns + across[None, :], kept, inside)
        peak = tl.maximum(peak, size)
        energy = (value * shrink) * (value * shrink)
        tl.atomic_add(row_energy + down, tl.sum(energy, 1).to(tl.float64), down < rows)
        column_sum += energy
    tl.atomic_add(column_energy + across, tl.sum(column_sum, 0).to(tl.float64), across < columns)
    tl.atomic_max(facts, tl.max(peak).to(tl.float64))
    tl.atomic_max(facts + 1, tl.max(wild).to(tl.float64))
    tl.atomic_max(facts + 2, tl.max(least).to(tl.float64))
    tl.atomic_add(facts + 3, tl.sum(error).to(tl.float64))


@triton.jit
def add_kernel(
    sample, eager, correction, squares, sums, row_squares, column_squares, facts, scale, shrink,
    rows, columns, sample_row, sample_column, eager_row, eager_column, loops,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the squares of a sample's difference, and its sums: `sums` holds rows, columns, and both times eager."""
    across = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    column = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column_dot = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column_square = tl.zeros((HEIGHT, WIDTH), tl.float32)
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
        unit = off * scale
        held = tl.load(squares + place, inside, other=0.0).to(tl.float32) + unit * unit
        tl.store(squares + place, held.to(squares.dtype.element_ty), inside)
        off = off * shrink
        dot = off * (base * shrink)
        tl.atomic_add(sums + down, tl.sum(off, 1).to(tl.float64), down < rows)
        tl.atomic_add(sums + total + down, tl.sum(dot, 1).to(tl.float64), down < rows)
        tl.atomic_add(row_squares + down, tl.sum(unit * unit, 1).to(tl.float64), down < rows)
        column += off
        column_dot += dot
        column_square += unit * unit
    tl.atomic_add(sums + rows + across, tl.sum(column, 0).to(tl.float64), across < columns)
    tl.atomic_add(sums + total + rows + across, tl.sum(column_dot, 0).to(tl.float64), across < columns)
    tl.atomic_add(column_squares + across, tl.sum(column_square, 0).to(tl.float64), across < columns)
    tl.atomic_max(facts, tl.max(wild).to(tl.float64))


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
    sums, facts, best, place_of_best, share, unit, half, tiny, lent, threshold, shrink,
    rows, columns, candidate_row, candidate_column, eager_row, eager_column, loops,
    HAS_TRUTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Judge every element; `facts` are: not finite, the largest difference, energy, wrong and changed elements."""
    across = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    column = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column_dot = tl.zeros((HEIGHT, WIDTH), tl.float32)
    wild = tl.zeros((HEIGHT, WIDTH), tl.float32)
    largest = tl.zeros((HEIGHT, WIDTH), tl.float32)
    energy = tl.zeros((HEIGHT, WIDTH), tl.float32)
    wrong = tl.zeros((HEIGHT, WIDTH), tl.float32)
    changed = tl.zeros((HEIGHT, WIDTH), tl.float32)
    worst = tl.full((HEIGHT, WIDTH), -1.0, tl.float32)  # What lies outside is less than anything inside.
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
        lends = tl.load(row_noise + down, down < rows, other=0.0)[:, None] * column_lends[None, :]
        sizes = tl.load(row_scale + down, down < rows, other=0.0)[:, None] * column_size[None, :]
        own = tl.load(squares + place, inside, other=0.0).to(tl.float32) * share
        ratio = tl.abs(off) / allowance(base, own, lends, sizes, unit, half, lent, tiny)
        ratio = tl.where(inside, ratio, -1.0)
        wrong += tl.where(ratio > threshold, 1.0, 0.0)
        met = tl.where(ratio > worst, turn, met)
        worst = tl.maximum(worst, ratio)
        largest = tl.maximum(largest, tl.abs(off))
        off = off * shrink
        dot = off * (base * shrink)
        energy += off * off
        tl.atomic_add(sums + down, tl.sum(off, 1).to(tl.float64), down < rows)
        tl.atomic_add(sums + total + down, tl.sum(dot, 1).to(tl.float64), down < rows)
        column += off
        column_dot += dot
    tl.atomic_add(sums + rows + across, tl.sum(column, 0).to(tl.float64), across < columns)
    tl.atomic_add(sums + total + rows + across, tl.sum(column_dot, 0).to(tl.float64), across < columns)
    tl.atomic_max(facts, tl.max(wild).to(tl.float64))
    tl.atomic_max(facts + 1, tl.max(largest).to(tl.float64))
    tl.atomic_add(facts + 2, tl.sum(energy).to(tl.float64))
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
    magnitude = near(eager)
    kept = torch.float32 if eager.dtype == torch.float32 else torch.bfloat16
    held = eager if truth is None else truth
    correction = torch.empty(eager.shape, dtype=kept, device=eager.device) if truth is not None else None
    row, column = vector(cut.rows, eager), vector(cut.columns, eager)
    facts = vector(4, eager)
    begin_kernel[cut.grid](
        eager, held, correction if correction is not None else eager, row, column, facts, tiny, 1.0 / magnitude,
        cut.rows, cut.columns, *eager.stride(), *held.stride(), cut.loops, HAS_TRUTH=truth is not None, **cut.shape,
    )  # fmt: skip
    peak, wild, least, error = facts.tolist()
    square = magnitude**2
    usable = wild == 0 and least == 0 and 1.0 / FAR < (peak / magnitude if peak else 1.0) < FAR
    return Begun(usable, correction, row.mul_(square), column.mul_(square), peak, error * square)


def add(
    sample: torch.Tensor,
    eager: torch.Tensor,
    correction: torch.Tensor | None,
    squares: torch.Tensor,
    profile: tuple[torch.Tensor, torch.Tensor],
    scale: float,
    magnitude: float,
) -> tuple[torch.Tensor, bool]:
    """Add one sample; return its sums, and whether all of it was finite. Products are taken in units of a magnitude."""
    cut = Cut.of(*eager.shape)
    sums, facts = vector(2 * (cut.rows + cut.columns), eager), vector(1, eager)
    add_kernel[cut.grid](
        sample, eager, correction if correction is not None else eager, squares, sums, *profile, facts, scale,
        1.0 / magnitude, cut.rows, cut.columns, *sample.stride(), *eager.stride(), cut.loops,
        HAS_TRUTH=correction is not None, **cut.shape,
    )  # fmt: skip
    return enlarged(sums, magnitude), facts.item() == 0


def judge(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    correction: torch.Tensor | None,
    squares: torch.Tensor,
    vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    numbers: tuple[float, float, float, float, float, float],
    magnitude: float,
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
        *numbers, 1.0 / magnitude, cut.rows, cut.columns, *candidate.stride(), *eager.stride(), cut.loops,
        HAS_TRUTH=correction is not None, **cut.shape,
    )  # fmt: skip
    at = best.argmax()
    found = torch.cat([facts, best[at].double().reshape(1), places[at].double().reshape(1)]).tolist()
    wild, largest, energy, wrong, changed, score, position = found
    return Judged(
        usable=wild == 0,
        identical=changed == 0,
        sums=enlarged(sums, magnitude),
        largest=largest,
        energy=energy * magnitude**2,
        wrong=int(wrong),
        score=score,
        position=int(position),
    )


def try_out(device: torch.device) -> None:
    """Raise where nothing can be compiled for a device: Triton wants a C compiler besides."""
    begin(torch.ones(2, 2, device=device), None, 0.0)


def near(values: torch.Tensor) -> float:
    """Return a power of two somewhere near the size of what there is, by a few of it."""
    few = values[:: max(1, values.shape[0] // 32), :: max(1, values.shape[1] // 32)]
    size = few.abs().max().item()
    return float(2.0 ** math.frexp(size)[1]) if 0 < size < math.inf else 1.0


def enlarged(sums: torch.Tensor, magnitude: float) -> torch.Tensor:
    """Return sums in their own units: of differences, and of products."""
    first, second = sums.chunk(2)
    first.mul_(magnitude)
    second.mul_(magnitude**2)
    return sums


def vector(size: int, like: torch.Tensor) -> torch.Tensor:
    """Return zeros to add to."""
    return torch.zeros(size, dtype=torch.float64, device=like.device)
