"""One run of the compiled model, heard leaf by leaf: each is judged as it comes, and kept where it comes out close."""

from __future__ import annotations

from typing import Any

from torchparity.compare.digests import Mark, mark_of
from torchparity.compare.expectation import compare_all
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.judge.appeals import CandidateRun, is_clear
from torchparity.judge.ground import Ground, kept
from torchparity.records import NOT_JUDGED, LeafReport, Status


class Hearing:
    """The leaves of a run, held against what is expected, or against the run `before`: bits are judged once."""

    def __init__(self, ground: Ground, tolerance: Tolerance, before: CandidateRun | None, *, reused: bool) -> None:
        self.ground, self.tolerance, self.before, self.reused = ground, tolerance, before, reused
        self.reports: dict[str, LeafReport] = {}
        self.suspects: dict[str, Leaf] = {}
        self.marks: dict[str, Mark] = {}

    def judge(self, leaf: Leaf) -> None:
        """Judge a leaf, unless eager itself does not repeat it."""
        if leaf.path in self.ground.fickle:
            return
        expectation = self.ground.expectations.get(leaf.path)
        if expectation is not None and not expectation.deterministic:
            self.reports[leaf.path] = expectation.undecided()
            return
        if self._told_before(leaf, None if expectation is None else expectation.leaf.value):
            return
        expected = {} if expectation is None else {leaf.path: expectation}
        # How errors are spread is counted in the first run, and where they differ.
        judged = compare_all(expected, {leaf.path: leaf}, self.tolerance, spread=self.before is None)
        self.reports.update(judged.reports)
        if judged.differing or not is_clear(judged.reports[leaf.path], self.tolerance, 0):
            self.suspects[leaf.path] = kept(leaf, reused=self.reused)

    def _told_before(self, leaf: Leaf, eager: Any) -> bool:
        """Take over what was said of the same bits in the run before, where they are the same."""
        mark = mark_of(leaf, eager) if leaf.changed else None
        if mark is None:
            return False
        self.marks[leaf.path] = mark
        if self.before is None or self.before.marks.get(leaf.path) != mark:
            return False
        report = self.before.comparison.reports.get(leaf.path)
        if report is None:
            return False
        self.reports[leaf.path] = report
        if leaf.path in self.before.suspects:
            self.suspects[leaf.path] = self.before.suspects[leaf.path]
        return True

    def missing(self) -> None:
        """Add what was expected and never came."""
        seen = {*self.reports, *self.ground.unjudged, *self.ground.fickle}
        missing = {path: expected for path, expected in self.ground.expectations.items() if path not in seen}
        if missing:
            self.reports.update(compare_all(missing, {}, self.tolerance).reports)

    @property
    def ordered(self) -> dict[str, LeafReport]:
        """The reports in the order in which eager gave the leaves."""
        first = {path: self.reports[path] for path in self.ground.expectations if path in self.reports}
        return {**first, **self.reports}


def report_of_none(path: str, leaf: Leaf | None) -> LeafReport:
    """Return the report of a leaf that our own judgement failed at."""
    role = leaf.role if leaf is not None else "output"
    return LeafReport(path=path, role=role, status=Status.UNKNOWN, dtype="", shape=(), note=NOT_JUDGED)
