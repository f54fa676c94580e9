"""All leaves together: what none shows alone in half precision, in the directions in which a fault would move them.

A one-percent scale of one matrix product moves every number behind it a little, less than bfloat16 rounds each. But
it moves them all in one direction, and rounding does not. The directions of every operation come from the model's own
derivatives (`run/adjoint.py`); how far correct runs go in each of them is what the noise runs show. A direction may be
as crude as it likes: runs that are correct go no further in it than others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.facts import tensor_of
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.compare.matrices import matrix
from torchparity.compare.statistics import FloatBaseline
from torchparity.judge.ground import Ground
from torchparity.judge.innocents import FARTHER
from torchparity.judge.settings import alone
from torchparity.records import IDENTICAL, KINK, Kind, LeafReport, Mismatch, Status
from torchparity.run.adjoint import Adjoint, Answers

# Noise runs after each look; only the last look can say that something differs.
RUNS_TOGETHER = (3, 6, 12)
# Below this share of the threshold a look is enough.
FAR_ENOUGH_BELOW = 0.5
# Where more correct runs than this would be called wrong, going far means nothing.
FEW_WRONG = 2
# So many correct runs are asked besides before a candidate is called wrong.
RIGHT_RUNS = 6
# More numbers than this, in all leaves of all runs together, are not kept.
KEPT = 1 << 28
SHORT = (torch.bfloat16, torch.float16)

Sample = dict[str, torch.Tensor]
Run = Callable[[Callable[[Leaf], None]], bool]


@dataclass(frozen=True)
class Direction:
    """The direction in which a candidate went furthest: `what` ("scale", "row mean") of `where`."""

    score: float
    what: str = ""
    where: str = ""


class Pooled:
    """Judges all float leaves of a candidate together."""

    def __init__(self, ground: Ground, tolerance: Tolerance) -> None:
        self.ground, self.tolerance = ground, tolerance
        self.samples: list[Sample] = []
        self.baselines: dict[str, FloatBaseline] = {}
        # The points of the model at which directions begin, and how far each sample went along them.
        self._names: list[str] = []
        self._known: list[list[Answers | None]] = []
        self._adjoint: Adjoint

    def applies(self, reports: Mapping[str, LeafReport]) -> bool:
        """Tell whether rounding may hide something: a number that is not bit for bit eager's, in half precision."""
        ground = self.ground
        if ground.reference is None or self.tolerance.relative is not None or ground.settings.agree is not alone:
            return False
        if len(ground.runner.calls) * ground.plan.steps != 1 or ground.settings.on_exact_data:
            return False
        if any(report.status is not Status.SAME or report.note == KINK for report in reports.values()):
            return False
        for path, expectation in ground.expectations.items():
            baseline = expectation.parts.get("")
            judged = expectation.leaf.role in ("output", "gradient") and path in reports
            if judged and isinstance(baseline, FloatBaseline) and baseline.correction is not None:
                self.baselines[path] = baseline
        total = sum(baseline.layout.total for baseline in self.baselines.values())
        rounded = [
            path
            for path, baseline in self.baselines.items()
            if (baseline.dtype in SHORT or ground.plan.autocast) and reports[path].note != IDENTICAL
        ]
        return bool(rounded) and total * (RUNS_TOGETHER[-1] + 2) <= KEPT

    def judge(self, run: Run) -> Direction:
        """Return the direction in which two runs of the candidate both went furthest, by the one that went less far."""
        candidates: list[Sample] = []
        for _ in range(2):
            sample: Sample = {}
            if not run(lambda leaf, sample=sample: self._keep(leaf, sample)):  # type: ignore[misc]
                return Direction(0.0)
            candidates.append(sample)
        self.samples = [{path: baseline.eager for path, baseline in self.baselines.items()}]
        found = Direction(0.0)
        for wanted in RUNS_TOGETHER:
            while len(self.samples) <= wanted:
                self.samples.append(self._run_noise(widen=True))
            found = self._look(candidates)
            if found.score < FAR_ENOUGH_BELOW * self.tolerance.threshold:
                return found
        return Direction(0.0) if found.score > self.tolerance.threshold and self._is_usual(found) else found

    def _is_usual(self, found: Direction) -> bool:
        """Tell whether correct runs, each held against the others, go as far, or too often too far to tell anything.

        A few more are asked for it that look closer at what seems exact: a sum of 1 and -1 that are none decides by it.
        """
        known = self._known
        scores = [self._furthest(run, known[:at] + known[at + 1 :]).score for at, run in enumerate(known)]
        while not self._excuse(scores, found):
            if len(scores) >= len(known) + RIGHT_RUNS:
                return False
            (right,) = self._answers(self._adjoint, [self._run_noise(widen=False)])
            scores.append(self._furthest(right, known).score)
        return True

    def _excuse(self, scores: list[float], found: Direction) -> bool:
        """Tell whether what correct runs score excuses a candidate."""
        wrong = [score for score in scores if score > self.tolerance.threshold]
        return len(wrong) > FEW_WRONG or found.score <= FARTHER * max(wrong, default=0.0)

    def _run_noise(self, *, widen: bool) -> Sample:
        """Return one more run with noise."""
        noise: Sample = {}
        targets = {path: self.ground.expectations[path] for path in self.baselines}
        self.ground.run_noise(targets, watch=lambda leaf: self._keep(leaf, noise), widen=widen)
        return noise

    def _keep(self, leaf: Leaf, sample: Sample) -> None:
        value = tensor_of(leaf.value)
        baseline = self.baselines.get(leaf.path)
        if value is not None and baseline is not None and tuple(value.shape) == baseline.shape:
            sample[leaf.path] = matrix(value, baseline.layout).clone()

    def _look(self, candidates: list[Sample]) -> Direction:
        with torchapi.eagerly():
            self._adjoint = Adjoint(self.ground.runner, self.ground.subject.model)
        self._names = [name for name, _ in self._adjoint.points]
        self._known = self._answers(self._adjoint, self.samples)
        furthest = [self._furthest(answers, self._known) for answers in self._answers(self._adjoint, candidates)]
        return min(furthest, key=lambda direction: direction.score)

    def _furthest(self, answers: list[Answers | None], known: list[list[Answers | None]]) -> Direction:
        """Return the direction in which one run went furthest, in units of what others do."""
        units = [units_of(given) for given in zip(*known, strict=True)]
        found = directions(self._names, answers, units)
        return max(found, key=lambda direction: direction.score, default=Direction(0.0))

    def _answers(self, adjoint: Adjoint, samples: list[Sample]) -> list[list[Answers | None]]:
        everything = (slice(None), slice(None))
        weights = {
            path: baseline.allowance(*everything).square_().reciprocal_()
            for path, baseline in self.baselines.items()
            if path in adjoint.leaves
        }
        return [
            adjoint.answers(
                {
                    path: self.baselines[path].difference(sample[path], *everything).mul_(weight)
                    for path, weight in weights.items()
                    if path in sample
                }
            )
            for sample in samples
        ]


def units_of(answers: tuple[Answers | None, ...]) -> Answers:
    """Return how far correct runs go in each direction of one point: root mean square, and what is usual around it."""
    given = [answer for answer in answers if answer is not None]
    if not given:
        return {}
    squares = {
        name: torch.stack([answer[name].square() for answer in given]).sum(0) / len(answers) for name in given[0]
    }
    units = {}
    for name, square in squares.items():
        rows = squares.get(f"row {name}")
        # All of it is the sum of its rows, and known from few runs: at least what independent rows would add up to.
        wider = square + square.mean() if rows is None else torch.maximum(square, rows.sum())
        units[name] = wider.sqrt()
    return units


def directions(names: list[str], answers: list[Answers | None], units: list[Answers]) -> list[Direction]:
    """Return how far a candidate went, in noise units, in every direction that correct runs go in at all."""
    found = []
    for name, answer, unit in zip(names, answers, units, strict=True):
        for what, vector in (answer or {}).items():
            if what in unit:
                ratio = vector.abs() / unit[what].clamp(min=torch.finfo(torch.float64).tiny)
                score = float(torch.where(unit[what] > 0, ratio, 0.0).max())
                found.append(Direction(score if math.isfinite(score) else 0.0, what, name))
    return found


def report_of(direction: Direction, reports: Mapping[str, LeafReport], paths: Mapping[str, Any]) -> LeafReport:
    """Return the report of the leaf that is nearest to differing by itself, which now does."""
    leaf = max((reports[path] for path in paths), key=lambda report: max(report.score, report.aggregate_score))
    detail = f"all leaves together, along the {direction.what} of {direction.where}"
    return replace(
        leaf,
        status=Status.DIFFERS,
        aggregate_score=max(direction.score, leaf.aggregate_score),
        mismatches=(Mismatch(kind=Kind.BIAS, detail=detail),),
    )
