"""The oracle: does the candidate compute what the model computes?

One check is a fixed list of runs from the same state, each consumed leaf by leaf:

    eager          what the model computes
    reference      eager again, with a float64 shadow beside every operation
    noise 1..K     eager with every rounding moved: how far correct results lie apart
    candidate x 2  the compiled model
    amplified      only where something differs: noise large enough to cross kinks and ties
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.expectation import Comparison, Expectation, compare_all
from torchparity.compare.leaves import Leaf
from torchparity.compilers.candidates import Candidate
from torchparity.errors import UsageError
from torchparity.judge import reasons
from torchparity.judge.ground import Ground, Settings, kept
from torchparity.judge.kinks import Suspects, numeric
from torchparity.records import (
    NOT_DETERMINISTIC,
    OTHER_RANDOM,
    Failure,
    Kind,
    LeafReport,
    Status,
    Verdict,
)
from torchparity.run.environment import environment
from torchparity.run.plan import Plan
from torchparity.run.state import RandomState
from torchparity.run.subject import Subject

FLAKY_RUNS = 5
AMPLITUDE = 4.0


@dataclass
class CandidateRun:
    """One run of the compiled model: its reports, and the leaves that differ."""

    comparison: Comparison
    suspects: dict[str, Leaf]
    failure: Failure | None = None
    random_after: RandomState | None = None
    out_of_memory: bool = False


class Oracle:
    """Runs one subject against one candidate, and says what it saw."""

    def __init__(self, subject: Subject, plan: Plan, candidate: Candidate, settings: Settings) -> None:
        self.subject = subject
        self.plan = plan
        self.candidate = candidate.fitting(plan)
        self.settings = settings
        self.tolerance = replace(settings.tolerance, ignore=settings.tolerance.ignore | candidate.ignored)
        self.ground = Ground(subject, plan, settings)
        self.started = time.perf_counter()

    # --- the whole -------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        """Return the verdict, and leave the model as it was found."""
        try:
            with torch.enable_grad():
                return self._judge()
        finally:
            self.candidate.release()
            self.ground.runner.release()

    def _judge(self) -> Verdict:
        failure = self.ground.prepare()
        if self.ground.raises:
            return self._judge_failing_model(failure)
        if not self.ground.expectations:
            return self._verdict(Status.UNKNOWN, [reasons.nothing_to_compare()], {})
        if self.ground.draws_random_numbers:
            self.candidate = self.candidate.with_eager_random()
        candidates = self._run_candidates()
        return self._decide(candidates)

    def _verdict(
        self,
        status: Status,
        why: list[str],
        reports: dict[str, LeafReport],
        *,
        failure: Failure | None = None,
        differs_in: tuple[int, int] | None = None,
    ) -> Verdict:
        order = {Status.DIFFERS: 0, Status.UNKNOWN: 1, Status.SAME: 2}
        leaves = sorted(
            reports.values(),
            key=lambda leaf: (order[leaf.status], not leaf.mismatches, -_rank(leaf)),
        )
        return Verdict(
            status=status,
            reasons=tuple(why + self.ground.notes),
            leaves=tuple(leaves),
            runs=tuple(self.ground.records),
            recipe={**self.candidate.facts(), **self.plan.facts(), **self.settings.facts()},
            environment=environment(self.ground.runner.device),
            subject=self.subject.title(),
            threshold=self.tolerance.threshold,
            failure=failure,
            differs_in=differs_in,
            seconds=time.perf_counter() - self.started,
        )

    # --- the candidate ---------------------------------------------------------------------------

    def _judge_failing_model(self, eager: Failure | None) -> Verdict:
        """Eager raises, here or on another rank: the candidate should raise as well."""
        candidate = self.candidate.build(self.subject.model)
        name = self.candidate.name
        self.ground.announce(name, candidate=True)
        with self.candidate.active():
            ending = self.ground.runner.run(candidate, lambda leaf: None)
        self.ground.record(name, ending)
        if eager is None:
            return self._verdict(Status.UNKNOWN, [reasons.raises_elsewhere()], {}, failure=ending.failure)
        if ending.failure is not None:
            return self._verdict(Status.UNKNOWN, [reasons.model_raises(eager)], {}, failure=eager)
        failure = replace(eager, stage="accepts_invalid")
        return self._verdict(Status.DIFFERS, [reasons.accepts_invalid(eager)], {}, failure=failure)

    def _run_candidates(self) -> list[CandidateRun]:
        """Run the compiled model twice, and more often where the runs disagree."""
        before = torchapi.graphs_compiled()
        candidate = self.candidate.build(self.subject.model)
        found: list[CandidateRun] = []
        with self.candidate.active():
            wanted = self.settings.candidate_runs
            while len(found) < wanted:
                found.append(self._run_compiled(candidate, f"{self.candidate.name} {len(found) + 1}"))
                if len({_fails(entry) for entry in found}) > 1:
                    wanted = max(wanted, FLAKY_RUNS)
                wanted = self.settings.agree("how many runs of the candidate?", wanted)
            compiled = torchapi.graphs_compiled() > before or not self.candidate.traces
            if not compiled and all(entry.failure is None for entry in found):
                self.ground.notes.append(reasons.nothing_compiled())
        return found

    def _run_compiled(self, candidate: Callable[..., Any], name: str) -> CandidateRun:
        self.ground.announce(name, candidate=True)
        reports: dict[str, LeafReport] = {}
        suspects: dict[str, Leaf] = {}

        def consume(leaf: Leaf) -> None:
            expectation = self.ground.expectations.get(leaf.path)
            expected = {} if expectation is None else {leaf.path: expectation}
            if expectation is not None and not expectation.deterministic:
                reports[leaf.path] = self._undecided(expectation)
                return
            judged = compare_all(expected, {leaf.path: leaf}, self.tolerance)
            reports.update(judged.reports)
            if judged.differing:
                suspects[leaf.path] = kept(leaf)

        ending = self.ground.runner.run(candidate, consume)
        self.ground.record(name, ending)
        if ending.out_of_memory:
            self.ground.notes.append(reasons.out_of_memory(name))
        if ending.failure is None:
            seen = set(reports)
            missing = {path: expectation for path, expectation in self.ground.expectations.items() if path not in seen}
            reports.update(compare_all(missing, {}, self.tolerance).reports)
        ordered = {path: reports[path] for path in self.ground.expectations if path in reports}
        return CandidateRun(
            Comparison({**ordered, **reports}), suspects, ending.failure, ending.random, ending.out_of_memory
        )

    @staticmethod
    def _undecided(expectation: Expectation) -> LeafReport:
        value = expectation.leaf.value
        return LeafReport(
            path=expectation.leaf.path,
            role=expectation.leaf.role,
            status=Status.UNKNOWN,
            dtype=str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch."),
            shape=tuple(getattr(value, "shape", ())),
            note=NOT_DETERMINISTIC,
        )

    # --- the decision ----------------------------------------------------------------------------

    def _decide(self, candidates: list[CandidateRun]) -> Verdict:
        self._forgive_kinks(candidates)
        self._excuse_random(candidates)
        failing = [entry for entry in candidates if _fails(entry)]
        if not failing:
            return self._decide_same(candidates[0])
        first = failing[0]
        count = (len(failing), len(candidates))
        if len(failing) < len(candidates):
            self.ground.notes.append(reasons.flaky(*count))
        if first.failure is not None:
            if first.failure.stage == "compile" and first.failure.type in ("ImportError", "ModuleNotFoundError"):
                raise UsageError(
                    f"the backend {self.candidate.name} cannot be used here: {first.failure.message}",
                    hint="install what it needs, or choose another backend",
                )
            if any(entry.out_of_memory for entry in candidates):
                return self._verdict(Status.UNKNOWN, [], first.comparison.reports)
            return self._verdict(
                Status.DIFFERS,
                [reasons.candidate_raises(first.failure)],
                first.comparison.reports,
                failure=first.failure,
                differs_in=count,
            )
        differing = first.comparison.differing
        reports = first.comparison.reports
        worst = max(differing, key=lambda path: _rank(reports[path]))
        why = reasons.differing_leaves(len(differing), len(reports), worst, reports[worst].kind)
        kinds = {mismatch.kind for path in differing for mismatch in reports[path].mismatches}
        if kinds <= {Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD}:
            self.ground.notes.insert(0, reasons.only_facts(kind.value for kind in kinds))
        return self._verdict(Status.DIFFERS, [why], reports, differs_in=count)

    def _decide_same(self, candidate: CandidateRun) -> Verdict:
        reports = candidate.comparison.reports
        unsteady = [path for path, report in reports.items() if report.note == NOT_DETERMINISTIC]
        unknown = [path for path, report in reports.items() if report.status is Status.UNKNOWN]
        if unknown:
            why = [reasons.not_deterministic(unsteady)] if unsteady else []
            return self._verdict(Status.UNKNOWN, why, reports)
        better = sum(report.nearer_than_eager for report in reports.values())
        if better:
            self.ground.notes.append(reasons.nearer(better))
        return self._verdict(Status.SAME, [reasons.all_inside(len(reports))], reports)

    def _forgive_kinks(self, candidates: list[CandidateRun]) -> None:
        """Where leaves differ in numbers only, see whether amplified noise reaches that far too."""
        if self.tolerance.relative is not None:
            return
        suspects = Suspects(self.ground.expectations, self.tolerance)
        for entry in candidates:
            for path, leaf in entry.suspects.items():
                suspects.add(path, leaf, entry.comparison.reports[path])
        runs = 0
        while self.settings.agree("another amplified run?", int(suspects.want_another(runs))):
            self.ground.run_noise(suspects.expectations, amplitude=AMPLITUDE, watch=suspects.watch)
            runs += 1
        forgiven = set()
        for entry in candidates:
            for path, leaf in entry.suspects.items():
                report = suspects.judge_again(path, leaf, entry.comparison.reports[path])
                entry.comparison.reports[path] = report
                if report.status is Status.SAME:
                    forgiven.add(path)
        if forgiven:
            self.ground.notes.append(reasons.kinks(sorted(forgiven)))

    def _control_draws_alike(self, strange: list[CandidateRun], paths: set[str]) -> bool:
        """Compile with a backend that is right, and see whether it draws as the candidate does, and agrees with eager.

        Compiling may drop a random number that nothing uses. Then the generators stand elsewhere, and yet
        every number that matters is eager's.
        """
        right = self.candidate.control()
        if right is None:
            return False
        with right.active():
            control = self._run_compiled(right.build(self.subject.model), "control")
        return (
            control.failure is None
            and not paths.intersection(control.comparison.differing)
            and all(drew_alike(entry.random_after, control.random_after) for entry in strange)
        )

    def _excuse_random(self, candidates: list[CandidateRun]) -> None:
        """Leaves that depend on random numbers cannot be judged where the backend draws others.

        A backend that draws eager's numbers leaves torch's generators where eager leaves them.
        """
        strange = [entry for entry in candidates if not drew_alike(entry.random_after, self.ground.random_after)]
        excusable = {
            path
            for entry in strange
            for path in entry.comparison.differing
            if numeric(entry.comparison.reports[path]) and self.ground.depends_on_random(path)
        }
        if not self.settings.agree("a control?", int(bool(excusable))):
            return
        if self._control_draws_alike(strange, excusable) or not excusable:
            return
        for entry in candidates:
            for path in excusable & set(entry.comparison.differing):
                report = entry.comparison.reports[path]
                entry.comparison.reports[path] = replace(report, status=Status.UNKNOWN, note=OTHER_RANDOM)
        self.ground.notes.append(reasons.other_random_numbers(self.candidate.name, sorted(excusable)))


def drew_alike(left: RandomState | None, right: RandomState | None) -> bool:
    """Tell whether two runs left torch's generators at the same place (a run that raised tells nothing)."""
    return left is None or right is None or left.same_torch_numbers(right)


def _rank(leaf: LeafReport) -> float:
    return max(leaf.score, leaf.aggregate_score)


def _fails(candidate: CandidateRun) -> bool:
    return candidate.failure is not None or bool(candidate.comparison.differing)
