"""What is made of the sums of a leaf on a GPU, in one launch each: noise that is kept, neighbourhoods, scores.

The plain form stands in `statistics.py` and `aggregates.py`. Sums of `tiles.Whole` lie one after the other, all over
rows first; so do those that a leaf keeps, where each line over rows is followed by the one over columns. One program
has a vector: rows or columns that are longer than `LONGEST_SUMS` are left to the plain form.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from torchparity.compare.tiles import Whole

# Numbers of a vector that a program reads at once, and its warps.
AT_ONCE = 2048
WARPS = 8
# Of more rows or columns than that torch's own kernels make use of more of the device.
LONGEST_SUMS = 1 << 17
# What a judgement tells: its energy and seven facts; behind them the scores of six sums, in the order of `SCORED`.
FACTS = 8
SCORED = ("mean", "scale", "row mean", "column mean", "row scale", "column scale")
TOLD = (FACTS + len(SCORED), torch.float64)


@triton.jit
def summed(values, size, AT_ONCE: tl.constexpr):
    """Add up a vector."""
    total = tl.zeros((AT_ONCE,), tl.float64)
    for first in range(0, size, AT_ONCE):
        place = first + tl.arange(0, AT_ONCE)
        total += tl.load(values + place, place < size, other=0.0)
    return tl.sum(total)


@triton.jit
def count_kernel(sums, kept, rows, columns, magnitude, weight, AT_ONCE: tl.constexpr):
    """Add the squares of a sample's sums to those that are kept, and its squares to the profile.

    Programs 0 to 5 have a vector each, 6 and 7 the sums over everything, of differences and times eager. Where
    something is not finite, nothing but the profile is added; whether all is stands behind the sums then.
    """
    number = tl.program_id(0)
    size = tl.cast(rows, tl.int64)
    total = summed(sums, 2 * size, AT_ONCE)
    usable = tl.where(total - total == 0, 1, 0)
    line = tl.where(number < 6, number // 2, number - 6).to(tl.int64)
    once = tl.cast(magnitude, tl.float64)
    unit = tl.where(line == 0, once, once * once)
    if number < 6:
        down = number % 2 == 0
        length = tl.where(down, rows, columns)
        source = sums + tl.where(down, line * rows, 3 * size + line * columns)
        target = kept + line * (size + columns) + tl.where(down, 0, rows)
        for first in range(0, length, AT_ONCE):
            place = first + tl.arange(0, AT_ONCE)
            value = tl.load(source + place, place < length, other=0.0)
            added = tl.where(line == 2, value, (value * unit) * (value * unit) * weight)
            held = tl.load(target + place, place < length, other=0.0)
            tl.store(target + place, held + added, (place < length) & (tl.where(line == 2, 1, usable) > 0))
    else:
        value = summed(sums + line * size, size, AT_ONCE) * unit
        target = kept + 3 * (size + columns) + line
        tl.store(target, tl.load(target) + value * value * weight, usable > 0)
        tl.store(sums + 3 * (size + columns), usable.to(tl.float64))


@triton.jit
def score_of(value, variance, floor):
    """Tell how many units a sum is off; no more than nothing where there is no telling."""
    unit = tl.sqrt(variance) + floor
    score = tl.where(unit > 0, value / unit, tl.where(value > 0, float("inf"), 0.0))
    return tl.where(score == score, score, 0.0)


@triton.jit
def score(
    number, sums, kept, energies, told, rows, columns, magnitude, inverse, share, row_share, column_share,
    FACTS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Score one of six sums of a candidate by the spread and the size of what there is; the first tells its energy."""
    size = tl.cast(rows, tl.int64)
    once = tl.cast(magnitude, tl.float64)
    if number == 0:
        tl.store(told, summed(sums + 2 * size, size, AT_ONCE) * once * once)
    elif number < 3:
        line = (number - 1).to(tl.int64)
        value = tl.abs(summed(sums + line * size, size, AT_ONCE)) * tl.where(line == 0, once, once * once)
        variance = 2 * tl.load(kept + 3 * (size + columns) + line) * inverse
        whole = summed(energies, size, AT_ONCE)
        floor = share * tl.where(line == 0, tl.sqrt(whole * size * columns), whole)
        tl.store(told + FACTS + line, score_of(value, variance, floor))
    else:
        line = ((number - 3) // 2).to(tl.int64)
        down = (number - 3) % 2 == 0
        length = tl.where(down, rows, columns)
        terms = tl.where(down, columns, rows)
        own = tl.where(down, row_share, column_share)
        source = sums + tl.where(down, line * rows, 3 * size + line * columns)
        noise = kept + line * (size + columns) + tl.where(down, 0, rows)
        energy = energies + tl.where(down, 0, rows)
        typical = 0.1 * summed(energy, length, AT_ONCE) / length
        pooled = summed(noise, length, AT_ONCE) / length
        worst = tl.zeros((AT_ONCE,), tl.float64)
        for first in range(0, length, AT_ONCE):
            place = first + tl.arange(0, AT_ONCE)
            inside = place < length
            value = tl.abs(tl.load(source + place, inside, other=0.0)) * tl.where(line == 0, once, once * once)
            local = tl.load(energy + place, inside, other=0.0) + typical
            floor = own * tl.where(line == 0, tl.sqrt(local * terms), local)
            variance = (tl.load(noise + place, inside, other=0.0) + pooled) * inverse
            worst = tl.maximum(worst, score_of(value, variance, floor))
        tl.store(told + FACTS + number - 1, tl.max(worst))


@triton.jit
def tell(
    facts, places, candidate, eager, correction, told,
    programs, columns, candidate_row, candidate_column, eager_row, eager_column,
    HAS_TRUTH: tl.constexpr, TURN_BITS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Put together what the programs of a judgement have found, and look at the place of the worst."""
    changed = tl.zeros((AT_ONCE,), tl.int64)
    seen = tl.zeros((AT_ONCE,), tl.int64)
    wrong = tl.zeros((AT_ONCE,), tl.int64)
    worst = tl.full((AT_ONCE,), -1, tl.int64)
    for first in range(0, programs, AT_ONCE):
        number = first + tl.arange(0, AT_ONCE)
        inside = number < programs
        changed += tl.load(facts + number, inside, other=0)
        seen += tl.load(facts + programs + number, inside, other=0)
        wrong += tl.load(facts + 2 * programs + number, inside, other=0)
        met = tl.load(facts + 3 * programs + number, inside, other=-1).to(tl.int64)
        worst = tl.maximum(worst, tl.where(met < 0, -1, (met << 32) | (programs - 1 - number)))
    top = tl.max(worst)
    highest = ((top >> 32).to(tl.int32) >> TURN_BITS) << TURN_BITS
    # Where nothing has a score, there is no place either.
    place = tl.load(places + (programs - 1 - (top & 0xFFFFFFFF)), top >= 0, other=0)
    row, column = place // columns, place % columns
    value = tl.load(candidate + row * candidate_row + column * candidate_column).to(tl.float32)
    base = tl.load(eager + row * eager_row + column * eager_column).to(tl.float32)
    truth = tl.load(correction + place).to(tl.float32) if HAS_TRUTH else 0.0
    tl.store(told + 1, tl.sum(changed).to(tl.float64))
    tl.store(told + 2, tl.sum(seen).to(tl.float64))
    tl.store(told + 3, tl.sum(wrong).to(tl.float64))
    tl.store(told + 4, highest.to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(told + 5, place.to(tl.float64))
    tl.store(told + 6, tl.abs(truth).to(tl.float64))
    tl.store(told + 7, tl.abs(value - base - truth).to(tl.float64))


@triton.jit
def close_kernel(
    facts, places, candidate, eager, correction, sums, kept, energies, told,
    programs, rows, columns, candidate_row, candidate_column, eager_row, eager_column,
    magnitude, inverse, share, row_share, column_share,
    HAS_TRUTH: tl.constexpr, TURN_BITS: tl.constexpr, FACTS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """End a judgement: the first program tells what was found, and each of seven others adds something up."""
    if tl.program_id(0) == 0:
        tell(
            facts, places, candidate, eager, correction, told,
            programs, columns, candidate_row, candidate_column, eager_row, eager_column,
            HAS_TRUTH, TURN_BITS, AT_ONCE,
        )  # fmt: skip
    else:
        score(
            tl.program_id(0) - 1, sums, kept, energies, told,
            rows, columns, magnitude, inverse, share, row_share, column_share, FACTS, AT_ONCE,
        )  # fmt: skip


@triton.jit
def around_kernel(
    source, found, rows, columns, row_factor, column_factor, share, flat_rows, flat_columns,
    ROOT: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Model a matrix by the means of its rows and columns: the first program has the rows, the other the columns."""
    down = tl.program_id(0) == 0
    mean = summed(source, rows, AT_ONCE) * row_factor / rows
    length = tl.where(down, rows, columns)
    start = tl.where(down, 0, rows)
    factor = tl.where(down, row_factor, column_factor)
    level = tl.where(down, flat_rows, flat_columns) != 0
    by = tl.where(down | (mean == 0), 1.0, mean)
    for first in range(0, length, AT_ONCE):
        place = first + tl.arange(0, AT_ONCE)
        value = tl.load(source + start + place, place < length, other=0.0) * factor
        value = (tl.where(level, mean, value) + share * mean) / by
        if ROOT:
            value = tl.sqrt(value)
        tl.store(found + start + place, value.to(tl.float32), place < length)


def short(rows: int, columns: int) -> bool:
    """Tell whether rows and columns are few enough for one program each."""
    return max(rows, columns) <= LONGEST_SUMS


def count(whole: Whole, kept: torch.Tensor, magnitude: float, weight: float) -> torch.Tensor:
    """Add a sample's sums to those that are kept, as their squares; return whether all is finite, on the device."""
    count_kernel[(8,)](
        whole.held, kept, whole.cut.rows, whole.cut.columns, magnitude, weight, AT_ONCE=AT_ONCE, num_warps=WARPS
    )  # fmt: skip
    return whole.spare


def close(
    whole: Whole,
    found: tuple[torch.Tensor, torch.Tensor],
    matrices: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    known: tuple[torch.Tensor, torch.Tensor],
    numbers: tuple[float, float, float, float, float],
    turn_bits: int,
    told: torch.Tensor,
) -> None:
    """Tell what a judgement has found: facts, and scores where rows and columns are `short`.

    `found` are what its programs have left, `known` the sums that are kept and the energies, `numbers` the magnitude,
    one over the number of samples, and the share of a rounding in a sum over everything, over a row, over a column.
    """
    (candidate, eager, correction), (kept, energies), cut = matrices, known, whole.cut
    close_kernel[(8 if short(cut.rows, cut.columns) else 2,)](
        *found, candidate, eager, correction if correction is not None else eager, whole.held, kept, energies, told,
        cut.programs, cut.rows, cut.columns, *candidate.stride(), *eager.stride(), *numbers,
        HAS_TRUTH=correction is not None, TURN_BITS=turn_bits, FACTS=FACTS, AT_ONCE=AT_ONCE, num_warps=WARPS,
    )  # fmt: skip


def around(
    source: torch.Tensor, shape: tuple[int, int], factors: tuple[float, float], share: float, few: int, *, root: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 vectors whose outer product models a matrix; `few` terms are too few for a profile."""
    rows, columns = shape
    found = torch.empty(rows + columns, dtype=torch.float32, device=source.device)
    around_kernel[(2,)](
        source, found, rows, columns, *factors, share, int(columns < few), int(rows < few),
        ROOT=root, AT_ONCE=AT_ONCE, num_warps=WARPS,
    )  # fmt: skip
    return found[:rows], found[rows:]
