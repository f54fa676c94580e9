"""What a run is expected to give, leaf by leaf: built from eager, widened by the noise, held against a candidate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.facts import compare_facts, fact, is_float, shape_of, tensor_of
from torchparity.compare.histogram import error_histogram
from torchparity.compare.integers import ExactBaseline, Origin
from torchparity.compare.judgement import (
    FloatJudgement,
    Suspicion,
    Tolerance,
    judge_exact,
    judge_float,
    unravel,
    value_at,
)
from torchparity.compare.leaves import Leaf, parts_of
from torchparity.compare.matrices import as_real
from torchparity.compare.statistics import FloatBaseline
from torchparity.records import (
    FLUSHED,
    IDENTICAL,
    NOT_COMPARED,
    NOT_DETERMINISTIC,
    UNCHANGED,
    UNINITIALISED,
    Histogram,
    Kind,
    LeafReport,
    Mismatch,
    Status,
)


def reaches_out(value: Any) -> bool:
    """Tell whether a leaf is a tensor outside of whose memory its numbers would lie: nobody may read them."""
    return isinstance(value, torch.Tensor) and torchapi.lies_outside(value)


class Expectation:
    """One leaf of eager with everything known of it."""

    def __init__(
        self,
        leaf: Leaf,
        reference: Mapping[str, torch.Tensor] | None = None,
        *,
        random: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self.leaf = leaf
        self.random = random
        self.deterministic = True
        # Whether every correct implementation gives these very numbers.
        self.exact = False
        # Where the reference's run shows what unwritten memory was filled with; a run that does not, tells.
        self.poisoned: torch.Tensor | None = None
        self.uninitialised = False
        # State that eager leaves alone needs no statistics unless a candidate writes to it.
        self.parts = baselines_of(leaf, reference, origin) if leaf.changed else {}

    def add(self, sample: Leaf, *, amplitude: float = 1.0) -> None:
        """Widen the expectation by one noise run (one whose leaf has another shape says nothing)."""
        value = tensor_of(sample.value)
        if value is None or not self.parts:
            return
        for suffix, part in parts_of(value):
            baseline = self.parts.get(suffix)
            if baseline is not None and comparable(baseline, part):
                baseline.add(part, amplitude=amplitude)

    def undecided(self) -> LeafReport:
        """Return the report of a leaf that nobody can be held to: eager itself does not repeat it."""
        value = self.leaf.value
        return LeafReport(
            path=self.leaf.path,
            role=self.leaf.role,
            status=Status.UNKNOWN,
            dtype=str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch."),
            shape=tuple(getattr(value, "shape", ())),
            note=UNINITIALISED if self.uninitialised else NOT_DETERMINISTIC,
        )

    def judge(self, candidate: Leaf, tolerance: Tolerance, *, spread: bool = True) -> LeafReport:
        """Hold the candidate's leaf against this one; count how errors are `spread`, or only where it differs."""
        facts = list(compare_facts(self.leaf, candidate))
        mismatches = [found for found in facts if found.kind not in tolerance.ignore]
        ignored = len(facts) > len(mismatches)
        if reaches_out(candidate.value) and not reaches_out(self.leaf.value):
            return self._report([*mismatches, fact(Kind.OUT_OF_BOUNDS, "memory", "its own", "outside of its own")])
        value = tensor_of(candidate.value)
        expected = tensor_of(self.leaf.value)
        if value is None or expected is None:
            numbers = (value is None) != (expected is None)
            return self._report(mismatches, compared=not (ignored and numbers))
        if not self.leaf.changed and not candidate.changed:
            return replace(self._report(mismatches), note=UNCHANGED)
        judgements: list[tuple[str, FloatJudgement]] = []
        spreads: dict[str, Histogram | None] = {}
        wrong = 0
        where: tuple[int, ...] | None = None
        baselines = self.parts
        if candidate.changed and not self.leaf.changed:
            baselines = baselines_of(self.leaf, dict(parts_of(expected)))
        parts = dict(parts_of(value))
        compared = bool(baselines) or not value.numel()
        for suffix, baseline in baselines.items():
            part = parts.get(suffix)
            if part is None or not comparable(baseline, part):
                compared = False
                continue
            if isinstance(baseline, FloatBaseline):
                judgement = judge_float(baseline, part, tolerance)
                if self.exact and not judgement.identical and differs_exactly(baseline, part):
                    judgement = replace(judgement, score=math.inf)
                judgements.append((suffix, judgement))
                mismatches += float_mismatches(baseline, part, judgement, tolerance)
                if spread or mismatches:
                    spreads[suffix] = error_histogram(baseline, part)
            else:
                wrong, position = judge_exact(baseline, part)
                if position is not None:
                    where = unravel(position, baseline.shape)
                    mismatches.append(exact_mismatch(baseline, part, wrong, position))
        if mismatches and self.leaf.changed != candidate.changed:
            words = {True: "written to", False: "left as it was"}
            expected_word, actual_word = words[self.leaf.changed], words[candidate.changed]
            mismatches.append(fact(Kind.MUTATION, "mutation", expected_word, actual_word))
        return self._report(mismatches, judgements, wrong, where, spreads, compared=compared)

    def _report(
        self,
        mismatches: list[Mismatch],
        judgements: Iterable[tuple[str, FloatJudgement]] = (),
        wrong: int = 0,
        where: tuple[int, ...] | None = None,
        spreads: Mapping[str, Histogram | None] | None = None,
        *,
        compared: bool = True,
    ) -> LeafReport:
        value = self.leaf.value
        dtype = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
        shape = shape_of(value)
        facts: dict[str, Any] = {}
        ranked = sorted(judgements, key=lambda pair: -pair[1].score)
        if ranked:
            suffix, worst = ranked[0]
            baseline = self.parts.get(suffix)
            facts = {
                "eager_error": worst.eager_error,
                "candidate_error": worst.candidate_error,
                "allowed": worst.allowed,
                "score": worst.score,
                "aggregate_score": max(judgement.aggregate_score for _, judgement in ranked),
                "lone_score": max(judgement.lone_score for _, judgement in ranked),
                "eager_rms_error": worst.eager_rms_error,
                "candidate_rms_error": worst.candidate_rms_error,
                "has_reference": isinstance(baseline, FloatBaseline) and baseline.has_reference,
                "histogram": (spreads or {}).get(suffix),
                "moved": max(judgement.moved for _, judgement in ranked),
                "small": all(judgement.small for _, judgement in ranked),
            }
            if any(judgement.flushed for _, judgement in ranked):
                facts["note"] = FLUSHED
            wrong = sum(judgement.wrong_elements for _, judgement in ranked)
            where = unravel(worst.position, baseline.shape if baseline else shape)
            if all(judgement.identical for _, judgement in ranked):
                facts["note"], where = IDENTICAL, None
        status = Status.SAME if compared else Status.UNKNOWN
        if not compared:
            facts["note"] = NOT_COMPARED
        return LeafReport(
            exact=self.exact,
            path=self.leaf.path,
            role=self.leaf.role,
            status=Status.DIFFERS if mismatches else status,
            dtype=dtype.removeprefix("torch."),
            shape=shape,
            where=where,
            wrong_elements=wrong,
            elements=value.numel() if isinstance(value, torch.Tensor) else math.prod(shape),
            mismatches=tuple(sorted(mismatches, key=lambda mismatch: KIND_ORDER[mismatch.kind])),
            **facts,
        )

    def agrees_with(self, candidate: Leaf, truths: Mapping[str, torch.Tensor], tolerance: Tolerance) -> bool:
        """Tell whether a candidate lies within the noise of another truth than the one that follows eager."""
        value = tensor_of(candidate.value)
        parts = dict(parts_of(value)) if value is not None else {}
        for suffix, baseline in self.parts.items():
            truth, part = truths.get(suffix), parts.get(suffix)
            if truth is None or part is None or not comparable(baseline, part) or truth.shape != part.shape:
                return False
            if not isinstance(baseline, FloatBaseline):
                if bool((baseline.wrong(part) & (part != truth)).any()):
                    return False
                continue
            other = baseline.around(truth)
            if float_mismatches(other, part, judge_float(other, part, tolerance), tolerance):
                return False
        return bool(self.parts)

    def suspicions(self, candidate: Leaf, tolerance: Tolerance) -> dict[str, Suspicion]:
        """Return the suspicious elements of each float part that differs."""
        value = tensor_of(candidate.value)
        if value is None or not (self.leaf.changed and candidate.changed):
            return {}
        return {
            suffix: Suspicion(baseline, part, tolerance)
            for suffix, part in parts_of(value)
            if isinstance(baseline := self.parts.get(suffix), FloatBaseline) and comparable(baseline, part)
        }


KIND_ORDER = {kind: order for order, kind in enumerate(Kind)}


def baselines_of(
    leaf: Leaf, references: Mapping[str, torch.Tensor] | None = None, origin: Origin | None = None
) -> dict[str, FloatBaseline | ExactBaseline]:
    """Choose how each part of a leaf is judged: floats by noise, everything else exactly."""
    value = tensor_of(leaf.value)
    if value is None:
        return {}
    baselines: dict[str, FloatBaseline | ExactBaseline] = {}
    for suffix, part in parts_of(value):
        if not is_float(part.dtype):
            baselines[suffix] = ExactBaseline(part, origin)
            continue
        truth = (references or {}).get(suffix)
        baseline = FloatBaseline(part, truth if truth is not None and truth.shape == part.shape else None)
        if isinstance(leaf.value, float | complex):
            # A Python number is nearly always the `.item()` of a float32 tensor.
            baseline.epsilon = torch.finfo(torch.float32).eps
        if baseline.has_reference:
            baseline.add(part)  # Eager is itself one sample of correct rounding.
        baselines[suffix] = baseline
    return baselines


def comparable(baseline: FloatBaseline | ExactBaseline, part: torch.Tensor) -> bool:
    """Tell whether numbers can be held against each other at all."""
    shape = (*part.shape, 2) if part.is_complex() else tuple(part.shape)
    return shape == baseline.shape and is_float(part.dtype) == is_float(baseline.dtype)


def float_mismatches(
    baseline: FloatBaseline, part: torch.Tensor, judgement: FloatJudgement, tolerance: Tolerance
) -> list[Mismatch]:
    """Turn a float judgement into mismatches."""
    found = []
    eager = baseline.eager.reshape(baseline.shape)
    if judgement.nonfinite_position is not None:
        found.append(_at(Kind.NONFINITE, "not finite", eager, part, judgement.nonfinite_position))
    if judgement.score > tolerance.threshold:
        found.append(_at(Kind.VALUE, "value", eager, part, judgement.position))
    elif judgement.aggregate_score > tolerance.threshold:
        found.append(Mismatch(kind=Kind.BIAS, detail=judgement.aggregate))
    return found


def differs_exactly(baseline: FloatBaseline, part: torch.Tensor) -> bool:
    """Tell whether a number is another one than eager's (zero has no sign here)."""
    values, eager = as_real(part).reshape(baseline.eager.shape), baseline.eager
    return not bool(((values == eager) | (values.isnan() & eager.isnan())).all())


def exact_mismatch(baseline: ExactBaseline, part: torch.Tensor, wrong: int, position: int) -> Mismatch:
    """Turn wrong integers into a mismatch."""
    return _at(Kind.INTEGER, f"{wrong} elements", baseline.eager, part, position)


def printed(tensor: torch.Tensor, position: int) -> str:
    """Show one number with as many digits as tell it from its neighbours."""
    value = value_at(tensor, position)
    return f"{value:.9g}" if isinstance(value, float) and tensor.dtype != torch.float64 else repr(value)


def _at(kind: Kind, detail: str, expected: torch.Tensor, actual: torch.Tensor, position: int) -> Mismatch:
    return Mismatch(
        kind=kind,
        detail=detail,
        where=unravel(position, tuple(expected.shape)),
        expected=printed(expected, position),
        actual=printed(actual, position),
    )


@dataclass
class Comparison:
    """The reports of all leaves of one candidate run, the ones that are missing or too many included."""

    reports: dict[str, LeafReport]

    @property
    def may_be_rounding(self) -> bool:
        """Whether all that differs are numbers, and nobody can tell from rounding where that is not known."""
        kinds = {mismatch.kind for path in self.differing for mismatch in self.reports[path].mismatches}
        return kinds <= {Kind.VALUE, Kind.BIAS}

    @property
    def differing(self) -> list[str]:
        """Paths of the leaves that differ."""
        return [path for path, report in self.reports.items() if report.status is Status.DIFFERS]


def compare_all(
    expectations: Mapping[str, Expectation], candidate: Mapping[str, Leaf], tolerance: Tolerance, *, spread: bool = True
) -> Comparison:
    """Pair the leaves of a candidate run with what is expected, and judge each pair."""
    reports = {}
    for path, expectation in expectations.items():
        leaf = candidate.get(path)
        if leaf is not None:
            reports[path] = expectation.judge(leaf, tolerance, spread=spread)
        elif expectation.leaf.value is not None:
            reports[path] = _lonely(expectation.leaf, expected="present", actual="missing")
    for path, leaf in candidate.items():
        if path not in expectations and leaf.value is not None:
            reports[path] = _lonely(leaf, expected="absent", actual="present")
    return Comparison(reports)


def _lonely(leaf: Leaf, *, expected: str, actual: str) -> LeafReport:
    value = leaf.value
    return LeafReport(
        path=leaf.path,
        role=leaf.role,
        status=Status.DIFFERS,
        dtype=str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch."),
        shape=shape_of(value),
        mismatches=(fact(Kind.STRUCTURE, "leaf", expected, actual),),
    )
