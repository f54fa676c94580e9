"""The judgement on one float or integer leaf: numbers first, no words.

Every score is in noise units: 1 is the typical distance of a correct run from the truth, and the
one threshold (`THRESHOLD`, derived in docs/design/threshold.md) separates rounding from error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchparity.compare.aggregates import Aggregate, aggregate_scores, judge_aggregates, worst_of
from torchparity.compare.integers import ExactBaseline
from torchparity.compare.matrices import Sums, as_real, matrix
from torchparity.compare.statistics import LENT, FloatBaseline, energy
from torchparity.records import Kind

THRESHOLD = 8.0
# An error of at most so many roundings of the largest value is one that the leaf's own size would never show.
UNSEEN = 2.0
# An element is forgiven where a run with amplified noise went this share of the way at least.
ENVELOPE = 0.67
# Amplified noise itself reaches this far on a smooth function: nearer than that, it explains nothing.
BEYOND_LINEAR = 16.0
# Of a smooth function the largest of sixteen runs is three or four times their median; so many times is a step.
# Elements whose runs are kept to see that, and the fewest runs that show it.
STEP = 8.0
FOLLOWED = 1 << 16
FEWEST = 8
# Noise that came this far may come all the way in another run.
APPROACH = 0.25
# Share of the suspicious elements that amplified runs may leave unreached.
UNREACHED = 0.02


@dataclass(frozen=True, kw_only=True)
class FloatJudgement:
    """What one float leaf of the candidate looks like against its baseline."""

    score: float
    position: int
    allowed: float
    eager_error: float
    candidate_error: float
    wrong_elements: int
    nonfinite_position: int | None
    aggregate: str
    aggregate_score: float
    eager_rms_error: float
    candidate_rms_error: float
    identical: bool = False
    lone_score: float = 0.0
    moved: float = 0.0
    small: bool = False
    flushed: int = 0


@dataclass
class Tolerance:
    """What an element may be off: the noise, or a fixed share of the leaf's scale if a person insists."""

    threshold: float = THRESHOLD
    relative: float | None = None
    ignore: frozenset[Kind] = frozenset()

    def allowance(self, baseline: FloatBaseline, rows: slice, columns: slice) -> torch.Tensor:
        """Return the size of one unit of score for each element of a block."""
        if self.relative is None:
            return baseline.allowance(rows, columns)
        scale = baseline.block(rows, columns).abs().clamp_(min=baseline.rms())
        return scale.mul_(self.relative / self.threshold).add_(baseline.tiny)


def judge_float(baseline: FloatBaseline, candidate: torch.Tensor, tolerance: Tolerance) -> FloatJudgement:
    """Compare a candidate with the truth: element by element, by position of NaN and Inf, and in aggregate."""
    values = matrix(candidate, baseline.layout)
    if baseline.kernels is not None and tolerance.relative is None and values.dtype == baseline.eager.dtype:
        judged = judge_at_once(baseline, values, tolerance)
        if judged is not None:
            return judged
    if torch.equal(values, baseline.eager):
        return bitwise_eager(baseline)
    score, allowed, position, wrong, largest, flushed = 0.0, 0.0, 0, 0, 0.0, 0
    nonfinite_position: int | None = None
    squares = 0.0
    sums = Sums.zeros(baseline.layout, baseline.device, baseline.magnitude)
    for rows, columns in baseline.layout.blocks(baseline.device):
        difference = baseline.difference(values, rows, columns)
        if baseline.truth is not None or not math.isfinite(energy(difference)):
            difference, bad = _nonfinite(baseline, values, rows, columns)
            if nonfinite_position is None and bool(bad.any()):
                nonfinite_position = _position(baseline, rows, columns, int(bad.int().argmax()))
        if baseline.has_least:
            flushed += forgive_flushed(baseline, values, difference, rows, columns)
        squares += energy(difference * (1.0 / baseline.magnitude)) * baseline.magnitude**2
        sums.add(rows, columns, difference, baseline.block(rows, columns))
        unit = tolerance.allowance(baseline, rows, columns)
        largest = max(largest, float(difference.abs_().max()) if difference.numel() else 0.0)
        ratio = difference.div_(unit)
        worst = float(ratio.max()) if ratio.numel() else 0.0
        if worst > tolerance.threshold:
            wrong += int((ratio > tolerance.threshold).sum())
        if worst > score:
            inside = int(ratio.argmax())
            score = worst
            allowed = float(unit.flatten()[inside]) * tolerance.threshold
            position = _position(baseline, rows, columns, inside)
    aggregate = judge_aggregates(baseline, sums) if tolerance.relative is None else Aggregate()
    row, column = divmod(position, max(1, baseline.layout.columns))
    eager_error, candidate_error = 0.0, 0.0
    if baseline.layout.total:
        spot = (slice(row, row + 1), slice(column, column + 1))
        eager_error = abs(float(baseline.difference(baseline.eager, *spot)))
        candidate_error = abs(float(baseline.difference(values, *spot)))
    rms = math.sqrt(squares / max(1, baseline.layout.total))
    return FloatJudgement(
        moved=rms / scale if (scale := baseline.rms()) > 0 else math.inf if rms > 0 else 0.0,
        small=largest <= UNSEEN * baseline.epsilon * baseline.peak,
        flushed=flushed,
        score=score,
        position=position,
        allowed=allowed,
        eager_error=eager_error,
        candidate_error=candidate_error,
        wrong_elements=wrong,
        nonfinite_position=nonfinite_position,
        aggregate=aggregate.name,
        aggregate_score=aggregate.score,
        lone_score=aggregate.lone,
        eager_rms_error=eager_rms_error(baseline),
        candidate_rms_error=rms,
    )


def judge_at_once(baseline: FloatBaseline, values: torch.Tensor, tolerance: Tolerance) -> FloatJudgement | None:
    """Do the same in one pass over memory; None where something is not finite, which takes more than that."""
    vectors = (*baseline.pool(), *baseline.scales())
    numbers = (
        1.0 / max(1, baseline.samples),
        baseline.unit,
        baseline.epsilon / 2,
        baseline.tiny,
        LENT,
        tolerance.threshold,
        UNSEEN * baseline.epsilon * baseline.peak,
    )
    layout = baseline.layout
    known = baseline.kept, baseline.energies
    sizes = baseline.magnitude, numbers[0], *map(baseline.share, (layout.total, layout.columns, layout.rows))
    kernels, matrices = baseline.kernels, (values, baseline.eager, baseline.correction, baseline.squares)
    found = kernels.judge(baseline.room(), *matrices, vectors, numbers, known, sizes)
    # All of it is asked for before the device is waited for, once.
    told, names = found.told, baseline.scored
    if kernels.short(layout.rows, layout.columns):
        names = kernels.SCORED
    else:
        told = torch.cat([told, aggregate_scores(baseline, Sums.cut_from(found.sums, layout))])
    facts = told.tolist()
    scores = dict(zip(names, facts[kernels.FACTS :], strict=True))
    energy_of_all, changed, seen, wrong, score, position, eager_error, candidate_error = facts[: kernels.FACTS]
    if not math.isfinite(energy_of_all):
        return None
    if changed == 0:
        return bitwise_eager(baseline)
    aggregate = worst_of(baseline, {name: scores[name] for name in baseline.scored})
    rms, scale = math.sqrt(energy_of_all / baseline.layout.total), baseline.rms()
    return FloatJudgement(
        moved=rms / scale if scale > 0 else math.inf if rms > 0 else 0.0,
        small=seen == 0,
        score=score,
        position=int(position),
        allowed=candidate_error / score * tolerance.threshold if score > 0 else 0.0,
        eager_error=eager_error,
        candidate_error=candidate_error,
        wrong_elements=int(wrong),
        nonfinite_position=None,
        aggregate=aggregate.name,
        aggregate_score=aggregate.score,
        lone_score=aggregate.lone,
        eager_rms_error=eager_rms_error(baseline),
        candidate_rms_error=rms,
    )


def forgive_flushed(
    baseline: FloatBaseline, values: torch.Tensor, difference: torch.Tensor, rows: slice, columns: slice
) -> int:
    """Take a zero for right where the truth is so small that vector code may flush it; return how often."""
    eager = baseline.block(rows, columns)
    zeroed = (values[rows, columns] == 0) & (eager != 0) & (eager.abs() < torch.finfo(baseline.dtype).tiny)
    difference.masked_fill_(zeroed, 0.0)
    return int(zeroed.sum())


def bitwise_eager(baseline: FloatBaseline) -> FloatJudgement:
    """What eager, bit for bit, is judged to be."""
    error = eager_rms_error(baseline)
    return FloatJudgement(
        score=0.0,
        position=0,
        allowed=0.0,
        eager_error=error,
        candidate_error=error,
        wrong_elements=0,
        nonfinite_position=None,
        aggregate="",
        aggregate_score=0.0,
        eager_rms_error=error,
        candidate_rms_error=error,
        identical=True,
    )


def _position(baseline: FloatBaseline, rows: slice, columns: slice, inside: int) -> int:
    width = min(columns.stop, baseline.layout.columns) - columns.start
    row, column = divmod(inside, width)
    return int((rows.start + row) * baseline.layout.columns + columns.start + column)


def _nonfinite(
    baseline: FloatBaseline, values: torch.Tensor, rows: slice, columns: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (difference where both are finite, else 0; where NaN or Inf stands wrongly).

    An element that is not finite must be what eager or the truth is at that place. A finite
    element where eager overflowed is judged against the truth like any other; where eager has NaN though the truth
    is a number, an Inf is no worse.
    """
    candidate = values[rows, columns].double()
    eager = baseline.eager[rows, columns].double()
    if baseline.truth is not None:
        truth = baseline.truth[rows, columns]
    elif baseline.correction is not None:
        truth = eager + baseline.correction[rows, columns].double()
    else:
        truth = eager
    both = torch.isfinite(candidate) & torch.isfinite(truth)
    alike = _identical(candidate, eager) | _identical(candidate, truth)
    bad = ~both & ~alike & ~(eager.isnan() & torch.isfinite(truth))
    if baseline.noise_nonfinite is not None:
        bad &= ~baseline.noise_nonfinite[rows, columns]
    difference = torch.where(both & ~alike, candidate - truth, 0.0)
    return difference.to(baseline.work), bad


def _identical(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def eager_rms_error(baseline: FloatBaseline) -> float:
    """Root mean square of eager minus truth."""
    if not baseline.has_reference:
        return 0.0
    if baseline.error_energy is not None:
        return math.sqrt(baseline.error_energy / max(1, baseline.layout.total))
    total = 0.0
    for rows, columns in baseline.layout.blocks(baseline.device):
        difference = baseline.difference(baseline.eager, rows, columns)
        total += energy(difference * (1.0 / baseline.magnitude)) * baseline.magnitude**2
    return math.sqrt(total / max(1, baseline.layout.total))


class Suspicion:
    """The elements of a failing leaf, followed through runs with amplified noise.

    Near a kink or a tie (a ReLU at zero, a router's top-k) a rounding moves a result by far more
    than its slope tells. Where amplified noise takes an element about as far as the candidate
    is, the candidate is only on the other side of the kink.
    """

    def __init__(self, baseline: FloatBaseline, candidate: torch.Tensor, tolerance: Tolerance) -> None:
        self.baseline = baseline
        self.candidate = candidate
        self.shape = tuple(candidate.shape)
        self.tolerance = tolerance
        found = []
        values = matrix(candidate, baseline.layout)
        for rows, columns in baseline.layout.blocks(baseline.device):
            difference, _ = _nonfinite(baseline, values, rows, columns)
            unit = tolerance.allowance(baseline, rows, columns)
            wrong = difference.abs() > tolerance.threshold * unit
            row, column = wrong.nonzero(as_tuple=True)
            found.append((row + rows.start) * baseline.layout.columns + column + columns.start)
        self.indices = torch.cat(found) if found else torch.empty(0, dtype=torch.long, device=baseline.device)
        self.distance = baseline.distance(candidate, self.indices)
        # Of plain noise alone: amplified runs that cross a kink widen the spread, and what is far off would seem near.
        self.smooth = self._units()
        self.envelope = torch.zeros_like(self.distance)
        self.runs: list[torch.Tensor] = []
        # In how many of how many runs an element was no number, though eager has one.
        self.numbered = torch.isfinite(baseline.eager.reshape(-1)[self.indices])
        self.endless = torch.zeros_like(self.indices)
        self.followed = 0

    def _units(self) -> torch.Tensor:
        """What one unit of score is at the suspicious elements, by all that is known now."""
        baseline = self.baseline
        units = torch.empty(baseline.layout.rows, baseline.layout.columns, dtype=baseline.work, device=baseline.device)
        for rows, columns in baseline.layout.blocks(baseline.device):
            units[rows, columns] = self.tolerance.allowance(baseline, rows, columns)
        return units.reshape(-1)[self.indices].double()

    def add(self, sample: torch.Tensor) -> None:
        """Follow the suspicious elements through one amplified run."""
        distance = self.baseline.distance(sample, self.indices)
        numbers = distance < torch.finfo(distance.dtype).max
        finite = torch.where(numbers, distance, 0.0)
        self.endless += ~numbers
        self.followed += 1
        self.envelope = torch.maximum(self.envelope, finite)
        if self.indices.numel() <= FOLLOWED:
            self.runs.append(finite)

    def reached(self) -> bool:
        """Tell whether amplified noise moved any suspicious element a good part of the way."""
        return bool((self.envelope > APPROACH * self.distance).any()) or bool(self._without_end().any())

    def _without_end(self) -> torch.Tensor:
        """Tell where most right runs give Inf or NaN: that eager has a number there, and which one, is chance.

        The derivative of a deviation that is too small for float16, say: eager takes it for zero.
        """
        return self.numbered & (self.endless * 2 > self.followed)

    def _steps(self) -> torch.Tensor:
        """Tell where amplified noise did little in most runs and very much in one: that is a step, and no slope."""
        if len(self.runs) < FEWEST:
            return torch.zeros_like(self.distance, dtype=torch.bool)
        return self.envelope > STEP * torch.stack(self.runs).median(0).values

    def explained(self) -> bool:
        """Tell whether amplified noise reaches (nearly) all suspicious elements."""
        beyond, remaining = self._reach()
        return bool(beyond.any()) and int(remaining.sum()) <= UNREACHED * self.indices.numel()

    def by_chance(self) -> bool:
        """Tell whether the others are those where most right runs have no number: nothing can be said of them."""
        chance, (_, remaining) = self._without_end(), self._reach()
        return bool(chance.any()) and int((remaining & ~chance).sum()) <= UNREACHED * self.indices.numel()

    def _reach(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tell which elements lie on the other side of a kink that noise crosses, and which are left unexplained."""
        beyond = (self.distance > BEYOND_LINEAR * self.smooth) | self._steps()
        beyond &= self.envelope >= ENVELOPE * self.distance
        inside = self.distance <= self.tolerance.threshold * self._units()
        return beyond, ~(beyond | inside)


def judge_exact(baseline: ExactBaseline, candidate: torch.Tensor) -> tuple[int, int | None]:
    """Return (how many elements differ unforgiven, the flat position of the first)."""
    wrong = baseline.wrong(candidate)
    count = int(wrong.sum())
    return count, int(wrong.flatten().int().argmax()) if count else None


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Turn a flat position into an index."""
    index = []
    for size in reversed(shape):
        position, inside = divmod(position, max(1, size))
        index.append(inside)
    return tuple(reversed(index))


def value_at(tensor: torch.Tensor, position: int) -> float | int | bool:
    """Return one element of a leaf as a Python number."""
    value: float | int | bool = as_real(tensor).reshape(-1)[position].item()
    return value
