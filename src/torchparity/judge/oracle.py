"""The oracle: does the candidate compute what the model computes?

One check is a fixed list of runs from the same state, each consumed leaf by leaf:

    eager          what the model computes
    reference      eager again, with a float64 shadow beside every operation
    noise 1        eager with every rounding moved: how far correct results lie apart
    candidate x 2  the compiled model
    noise 2..K     only where a leaf comes out close: how far apart, more exactly
    amplified      only where something differs: noise large enough to cross kinks and ties
    together       only in half precision, where nothing differs: all leaves at once, along the model's derivatives
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.expectation import Comparison
from torchparity.compare.leaves import Leaf
from torchparity.compilers.candidates import Candidate, replays
from torchparity.errors import ParityError, UsageError
from torchparity.judge import reasons
from torchparity.judge.appeals import Appeals, CandidateRun, drew_alike
from torchparity.judge.choices import hearing_choices, judge_choices, tuned_to
from torchparity.judge.coverage import Coverage
from torchparity.judge.ground import Ground
from torchparity.judge.hearing import Hearing, report_of_none
from torchparity.judge.holding import Held
from torchparity.judge.memory import look_at_memory, reuses
from torchparity.judge.otherwise import judge_closely, judge_exactly, judge_replays, judge_without_dropout
from torchparity.judge.pooled import Pooled, report_of
from torchparity.judge.settings import Settings
from torchparity.records import (
    FLUSHED,
    NO_NUMBER,
    NOT_COMPARED,
    NOT_DETERMINISTIC,
    UNINITIALISED,
    Extent,
    Failure,
    Kind,
    LeafReport,
    Status,
    Verdict,
)
from torchparity.run.environment import environment
from torchparity.run.plan import Plan
from torchparity.run.subject import Subject
from torchparity.stack import roomy

FLAKY_RUNS = 5
# Where a device records and replays: the first run warms up, the second is recorded, and so many are replays.
REPLAYING_DEVICES = ("cuda",)
RECORDED = 2
REPLAYS = 4


class Oracle:
    """Runs one subject against one candidate, and says what it saw."""

    def __init__(self, subject: Subject, plan: Plan, candidate: Candidate, settings: Settings) -> None:
        self.subject = subject
        self.plan = plan
        self.candidate = candidate.fitting(plan)
        self.settings = settings
        self.tolerance = replace(settings.tolerance, ignore=settings.tolerance.ignore | candidate.ignored)
        self.ground = Ground(subject, plan, settings)
        self.coverage = Coverage()
        self.extent: Extent | None = None
        self.nothing_compiled = False
        self.built: Callable[..., Any] | None = None
        self.held = Held(reuses=reuses(self))
        # The kernel that was taken for every operation that the compiler tunes.
        self.taken: dict[torchapi.Offer, str] = {}
        self.started = time.perf_counter()

    # --- the whole -------------------------------------------------------------------------------

    @roomy
    def judge(self) -> Verdict:
        """Return the verdict, and leave the model as it was found."""
        try:
            with torch.enable_grad():
                verdict = self.judge_once()
                if verdict.status is Status.UNKNOWN and self.built is not None:
                    verdict = judge_without_dropout(self, verdict)
                if self._may_look_again(verdict) and self.tolerance.relative is None and not torchapi.is_distributed():
                    verdict = judge_closely(self, verdict)
                if self._may_look_again(verdict) and self.replaying and not torchapi.is_distributed():
                    verdict = judge_replays(self, verdict)
                if self._may_look_again(verdict) and self.settings.exact:
                    verdict = judge_exactly(self, verdict)
                if self.settings.every_choice:
                    verdict = judge_choices(self, verdict)
                return verdict
        finally:
            if not self.ground.runner.lost:
                self.candidate.release()
                self.ground.runner.release()

    def _may_look_again(self, verdict: Verdict) -> bool:
        return verdict.status is not Status.DIFFERS and self.built is not None

    @property
    def recorded(self) -> bool:
        """Whether the candidate is recorded, and replayed from then on."""
        return self.ground.runner.device.type in REPLAYING_DEVICES and replays(self.candidate.facts())

    @property
    def replaying(self) -> bool:
        """Whether it has yet to be replayed on other data."""
        return self.recorded and not self.settings.on_other_data

    def judge_once(self) -> Verdict:
        """Return the verdict on the data that there are."""
        failure = self.ground.prepare()
        if self.ground.raises:
            return self._judge_failing_model(failure)
        if not self.ground.expectations:
            return self._verdict(Status.UNKNOWN, [reasons.nothing_to_compare()], {})
        if self.ground.draws_random_numbers and self.candidate.draws_its_own:
            self.candidate = self.candidate.with_eager_random()
        with self.coverage.listening():
            refused = self._build()
            if refused is not None:
                return self._verdict(Status.UNKNOWN, [reasons.not_taken(self.candidate.name, refused)], {})
            candidates = self._run_candidates()
            told = self.candidate.with_eager_random()
            if self._drew_others(candidates) and told is not self.candidate:
                self.candidate, self.built = told, None
                candidates = self._run_candidates()
            if candidates[-1].failure is None:
                look_at_memory(self, candidates)
            return self._decide(candidates)

    def _drew_others(self, candidates: list[CandidateRun]) -> bool:
        """Tell whether the candidate drew other random numbers than eager, and was not yet told to draw eager's.

        The setting is inductor's, and obeyed by whoever uses its decompositions; others draw eager's without it.
        """
        others = any(not drew_alike(entry.random_after, self.ground.random_after) for entry in candidates)
        again = others and self.ground.draws_random_numbers and not self.candidate.draws_its_own
        again &= not candidates[-1].lost
        return bool(self.settings.agree("with eager's random numbers?", int(again)))

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
            compiled=self.extent,
            tuned=tuple(tuned_to(*entry) for entry in self.taken.items()),
        )

    def _measure(self) -> None:
        """Note how much of the model the candidate's last run had in graphs; nothing of what Dynamo does not trace.

        Where eager computes something and no graph ran in its place, nothing was compiled.
        """
        if not self.candidate.traces:
            return
        coverage, operations, left = self.coverage, self.ground.operations, self.coverage.left
        self.extent = Extent(inside=coverage.operations, operations=operations, graphs=coverage.graphs, left=left)
        self.nothing_compiled = coverage.calls == 0 and (self.ground.reference is None or operations > 0)

    # --- the candidate ---------------------------------------------------------------------------

    def _judge_failing_model(self, eager: Failure | None) -> Verdict:
        """Eager raises, here or on another rank: the candidate should raise as well."""
        if eager is not None and self.ground.runner.lost:
            return self._verdict(
                Status.UNKNOWN, [reasons.model_raises(eager), reasons.process_lost()], {}, failure=eager
            )
        candidate = self.candidate.build(self.subject.model)
        name = self.candidate.name
        self.ground.announce(name, candidate=True)
        with self.candidate.active():
            ending = self.ground.runner.run(candidate, lambda leaf: None, patience=self.ground.patience)
        self.ground.record(name, ending)
        if eager is None:
            return self._verdict(Status.UNKNOWN, [reasons.raises_elsewhere()], {}, failure=ending.failure)
        if ending.failure is not None:
            return self._verdict(Status.UNKNOWN, [reasons.model_raises(eager)], {}, failure=eager)
        failure = replace(eager, stage="accepts_invalid")
        return self._verdict(Status.DIFFERS, [reasons.accepts_invalid(eager)], {}, failure=failure)

    def _build(self) -> BaseException | None:
        """Compile, where that is not done yet; return why the compiler does not even take such a model."""
        if self.built is not None:
            return None
        self.coverage.forget()
        try:
            self.built = self.candidate.build(self.subject.model)
        except (ParityError, ImportError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - TorchScript, for instance; SystemExit of a backend, too
            return error
        return None

    def _run_candidates(self) -> list[CandidateRun]:
        """Run the compiled model twice, and more often where the runs disagree, or where the third is another thing."""
        refused = self._build()
        if refused is not None:  # Told of eager's random numbers, it refuses what it took before.
            raise refused
        candidate: Callable[..., Any] = self.built  # type: ignore[assignment]
        found: list[CandidateRun] = []
        with self.candidate.active(), hearing_choices(self.candidate, self.taken):
            wanted = self.settings.candidate_runs
            if self.replaying:
                wanted = max(wanted, RECORDED + REPLAYS)
                self.ground.runner.hold_inputs = True
            while len(found) < wanted:
                name = f"{self.candidate.name} {len(found) + 1}"
                found.append(self.run_compiled(candidate, name, found[-1] if found else None))
                if found[-1].lost:
                    break
                if len({entry.fails for entry in found}) > 1:
                    wanted = max(wanted, FLAKY_RUNS)
                wanted = self.settings.agree("how many runs of the candidate?", wanted)
        self._measure()
        return found

    def run_compiled(
        self, candidate: Callable[..., Any], name: str, before: CandidateRun | None = None
    ) -> CandidateRun:
        """Run what was built once, and judge every leaf that is not what it was in the run `before`."""
        self.ground.announce(name, candidate=True)
        self.coverage.begin()
        hearing = Hearing(self.ground, self.tolerance, before, reused=self.recorded)

        def consume(leaf: Leaf) -> None:
            self.held.hear(leaf)
            self.ground.own(leaf.path, lambda: hearing.judge(leaf))

        ending = self.ground.runner.run(candidate, consume, patience=self.ground.patience)
        self.ground.record(name, ending)
        if ending.out_of_memory:
            self.ground.notes.append(reasons.out_of_memory(name))
        if ending.failure is None:
            hearing.missing()
        return CandidateRun(
            Comparison(hearing.ordered),
            hearing.suspects,
            ending.failure,
            ending.random,
            out_of_memory=ending.out_of_memory,
            lost=ending.lost,
            marks=hearing.marks,
        )

    # --- the decision ----------------------------------------------------------------------------

    def _decide(self, candidates: list[CandidateRun]) -> Verdict:
        last = candidates[-1]
        if last.lost and last.failure is not None:
            self.ground.notes.append(reasons.process_lost())
            lost = [reasons.device_fails(self.candidate.name, last.failure)]
            return self._verdict(Status.DIFFERS, lost, {}, failure=last.failure, differs_in=(1, len(candidates)))
        Appeals(self.ground, self.tolerance, self.candidate, self.run_compiled).hear(candidates)
        failing = [entry for entry in candidates if entry.fails]
        if not failing:
            self._judge_together(candidates)
            failing = [entry for entry in candidates if entry.fails]
        if not failing:
            return self._decide_same(candidates[0])
        first = failing[0]
        count = (len(failing), len(candidates))
        if len(failing) < len(candidates):
            replayed = len(candidates) >= RECORDED + REPLAYS and failing == candidates[RECORDED:]
            self.ground.notes.append(reasons.only_replayed() if replayed else reasons.flaky(*count))
        if first.failure is not None:
            if first.failure.stage == "compile" and first.failure.type in ("ImportError", "ModuleNotFoundError"):
                raise UsageError(
                    f"the backend {self.candidate.name} cannot be used here: {first.failure.message}",
                    hint="install what it needs, or choose another backend",
                )
            if any(entry.out_of_memory for entry in candidates):
                return self._verdict(Status.UNKNOWN, [], first.comparison.reports)
            if first.failure.lacking:
                told = [reasons.machine_lacks(first.failure)]
                return self._verdict(Status.UNKNOWN, told, first.comparison.reports, failure=first.failure)
            return self._verdict(
                Status.DIFFERS,
                [reasons.candidate_raises(first.failure)],
                first.comparison.reports,
                failure=first.failure,
                differs_in=count,
            )
        differing = first.comparison.differing
        reports = first.comparison.reports
        if self.ground.noise_counter and not self.ground.noise_known and first.comparison.may_be_rounding:
            return self._verdict(Status.UNKNOWN, [reasons.noise_unknown()], reports)
        worst = max(differing, key=lambda path: _rank(reports[path]))
        why = reasons.differing_leaves(len(differing), len(reports), worst, reports[worst].kind)
        kinds = {mismatch.kind for path in differing for mismatch in reports[path].mismatches}
        if kinds <= {Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD}:
            self.ground.notes.insert(0, reasons.only_facts(kind.value for kind in kinds))
        return self._verdict(Status.DIFFERS, [why], reports, differs_in=count)

    def _judge_together(self, candidates: list[CandidateRun]) -> None:
        """Where no leaf differs by itself, see whether all of them together do."""
        pooled = Pooled(self.ground, self.tolerance)
        if not pooled.applies(candidates[0].comparison.reports):
            return
        try:
            with self.candidate.active():
                found = pooled.judge(self._run_again)
        except ParityError:
            raise
        except Exception as error:  # noqa: BLE001 - a model without derivatives; each leaf was judged by itself
            self.ground.notes.append(reasons.not_together(f"{type(error).__name__}: {error}"))
            return
        if found.score <= self.tolerance.threshold:
            return
        self.ground.notes.append(reasons.together(found.score, found.what, found.where))
        for entry in candidates:
            reports = entry.comparison.reports
            report = report_of(found, reports, pooled.baselines)
            reports[report.path] = report

    def _run_again(self, consume: Callable[[Leaf], None]) -> bool:
        """Run the candidate once more; tell whether it returned."""
        if self.built is None:
            return False
        name = f"{self.candidate.name} again"
        self.ground.announce(name, candidate=True)
        ending = self.ground.runner.run(self.built, consume)
        self.ground.record(name, ending)
        return ending.failure is None

    def _decide_same(self, candidate: CandidateRun) -> Verdict:
        reports = dict(candidate.comparison.reports)
        for path, why in self.ground.unjudged.items():
            held = self.ground.expectations.get(path)
            reports[path] = report_of_none(path, held.leaf if held is not None else None)
            self.ground.notes.append(reasons.not_judged(path, why))
        unknown = [path for path, report in reports.items() if report.status is Status.UNKNOWN]
        if unknown:
            noted = {path: reports[path].note for path in unknown}
            told = (
                (NOT_DETERMINISTIC, reasons.not_deterministic),
                (UNINITIALISED, reasons.uninitialised),
                (NOT_COMPARED, reasons.not_compared),
                (NO_NUMBER, reasons.by_chance),
            )
            groups = [(tell, [path for path in unknown if noted[path] == note]) for note, tell in told]
            return self._verdict(Status.UNKNOWN, [tell(paths) for tell, paths in groups if paths], reports)
        if self.nothing_compiled and not self.settings.allow_eager:
            left = self.extent.left if self.extent is not None else ()
            return self._verdict(Status.UNKNOWN, reasons.nothing_compiled(left), reports)
        zeroed = [path for path, report in reports.items() if report.note == FLUSHED]
        if zeroed:
            self.ground.notes.append(reasons.flushed(zeroed))
        better = sum(report.nearer_than_eager for report in reports.values())
        if better:
            self.ground.notes.append(reasons.nearer(better))
        return self._verdict(Status.SAME, [reasons.all_inside(len(reports))], reports)


def _rank(leaf: LeafReport) -> float:
    return max(leaf.score, leaf.aggregate_score)
