"""Differences that rounding itself can make: a ReLU at zero, a router's tie, an argmax between equals.

Where leaves differ in numbers, the model runs again with amplified noise. What that noise reaches is
the other side of a kink and is forgiven; what it does not reach is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from torchparity.compare.expectation import Expectation
from torchparity.compare.facts import tensor_of
from torchparity.compare.judgement import Suspicion, Tolerance
from torchparity.compare.leaves import Leaf, parts_of
from torchparity.judge.truths import truths_of
from torchparity.records import KINK, NO_NUMBER, SEVERITY_OF, Kind, LeafReport, Mismatch, Severity, Status
from torchparity.run.reference import Reference

# Amplified noise moves roundings by so many units.
AMPLITUDE = 4.0
# At least and at most so many amplified runs. Where products are shortened, noise is thousands of float32 roundings:
# many a ReLU lies within it, and four runs miss one of them too often.
LEAST, MOST = 4, 16
# A score this many times the threshold needs no finer estimate of the noise.
CLEAR = 5.0
NUMERIC_KINDS = (
    Kind.VALUE,
    Kind.BIAS,
    Kind.NONFINITE,
    Kind.INTEGER,
    Kind.OBJECT,
    Kind.SHAPE,
    Kind.MUTATION,
)


def numeric(report: LeafReport) -> bool:
    """Tell whether numbers alone differ: noise, or other random numbers, might explain that."""
    return all(mismatch.kind in NUMERIC_KINDS for mismatch in report.mismatches)


def beside_layout(report: LeafReport) -> set[Kind]:
    """Return the kinds of what differs beside strides, aliases and the like, which no noise explains or decides."""
    return {mismatch.kind for mismatch in report.mismatches if not _of_layout(mismatch)}


def followable(report: LeafReport) -> bool:
    """Tell whether, beside the layout, only the values of floats differ."""
    kinds = beside_layout(report)
    return bool(kinds) and kinds <= {Kind.VALUE, Kind.BIAS}


def decidable(report: LeafReport) -> bool:
    """Tell whether, beside the layout, only numbers differ that float64 by itself has as well."""
    kinds = beside_layout(report)
    return bool(kinds) and kinds <= {Kind.VALUE, Kind.BIAS, Kind.INTEGER}


def forgive_values(report: LeafReport) -> LeafReport:
    """Return a report on a leaf whose values rounding explains; another layout is still another layout."""
    left = tuple(mismatch for mismatch in report.mismatches if _of_layout(mismatch))
    return replace(report, status=Status.DIFFERS if left else Status.SAME, mismatches=left, note=KINK)


def _of_layout(mismatch: Mismatch) -> bool:
    return SEVERITY_OF[mismatch.kind] is Severity.LAYOUT


class Suspects:
    """The leaves of candidate runs that differ in numbers, followed through amplified noise."""

    def __init__(self, expectations: Mapping[str, Expectation], tolerance: Tolerance, *, least: int = LEAST) -> None:
        self._all = expectations
        self.least = least
        self.tolerance = tolerance
        self.expectations: dict[str, Expectation] = {}
        self.scores: dict[str, float] = {}
        self.followed: dict[str, list[tuple[str, Suspicion]]] = {}
        self._final = False

    @property
    def runs_wanted(self) -> int:
        """At most so many amplified runs are worth making."""
        return MOST if self.expectations and not self._final else 0

    def want_another(self, runs: int) -> bool:
        """Tell whether an amplified run after so many is worth making."""
        return runs < self.runs_wanted and not self.decided(runs)

    def add(self, path: str, leaf: Leaf, report: LeafReport) -> None:
        """Follow one differing leaf."""
        kinds = beside_layout(report)
        if not kinds and report.mismatches:
            return  # Other strides alone: the numbers of other leaves still decide how much it matters.
        if not kinds <= set(NUMERIC_KINDS) or path not in self._all:
            self._final = True  # A wrong dtype or a missing leaf decides, whatever the numbers do.
            return
        expectation = self._all[path]
        self.expectations[path] = expectation
        found = expectation.suspicions(leaf, self.tolerance)
        self.followed.setdefault(path, []).extend(found.items())
        score = math.inf if Kind.NONFINITE in kinds else max(report.score, report.aggregate_score)
        self.scores[path] = max(score, self.scores.get(path, 0.0))

    def watch(self, leaf: Leaf) -> None:
        """Follow the suspicious elements through one amplified run."""
        value = tensor_of(leaf.value)
        parts = {} if value is None else dict(parts_of(value))
        for suffix, suspicion in self.followed.get(leaf.path, []):
            if suffix in parts and tuple(parts[suffix].shape) == suspicion.shape:
                suspicion.add(parts[suffix])

    def watch_widened(self, wider: Reference, leaf: Leaf) -> None:
        """Follow them through a run that keeps float32 in between, where the model rounds to half precision."""
        value = leaf.made
        if leaf.path in self.followed and isinstance(value, torch.Tensor):
            truths = truths_of(wider, value)
            for suffix, suspicion in self.followed[leaf.path]:
                if suffix in truths and tuple(truths[suffix].shape) == suspicion.shape:
                    suspicion.add(truths[suffix])

    @property
    def unexplained(self) -> bool:
        """Whether some element that is followed lies farther off than any noise took it."""
        every = [suspicion for found in self.followed.values() for _, suspicion in found]
        return not all(suspicion.explained() for suspicion in every)

    def decided(self, runs: int) -> bool:
        """Tell whether some leaf is far off and no noise comes near it: the verdict cannot change any more."""
        if runs < self.least:
            return False
        return any(
            score > CLEAR * self.tolerance.threshold
            and not any(suspicion.reached() for _, suspicion in self.followed[path])
            for path, score in self.scores.items()
        )

    def judge_again(self, path: str, leaf: Leaf, report: LeafReport) -> LeafReport:
        """Judge a leaf with all that is now known of the noise."""
        if path not in self.expectations:
            return report
        again = self.expectations[path].judge(leaf, self.tolerance)
        suspicions = [suspicion for _, suspicion in self.followed[path]]
        if again.status is Status.SAME or not suspicions or not followable(again):
            return again
        if not again.exact and all(suspicion.explained() for suspicion in suspicions):
            return forgive_values(again)
        if not again.exact and all(suspicion.explained() or suspicion.by_chance() for suspicion in suspicions):
            return replace(again, status=Status.UNKNOWN, note=NO_NUMBER)
        return again
