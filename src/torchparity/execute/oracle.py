"""The oracle: does the candidate compute what the model computes?

One check is a fixed list of runs from the same state, each consumed leaf by leaf:

    eager          what the model computes
    reference      eager again, with a float64 shadow beside every operation
    noise 1..K     eager with every rounding moved: how far correct results lie apart
    candidate x 2  the compiled model
    amplified      only where something differs: noise large enough to cross kinks and ties
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.expectation import Comparison, Expectation, compare_all, tensor_of
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.compare.statistics import ExactBaseline, FloatBaseline, as_real, identical
from torchparity.errors import ResourceError
from torchparity.execute import reasons
from torchparity.execute.environment import environment
from torchparity.execute.kinks import Suspects, numeric
from torchparity.execute.random_probe import draws_eager_numbers
from torchparity.records import (
    NOT_DETERMINISTIC,
    OTHER_RANDOM,
    Failure,
    LeafReport,
    Progress,
    ProgressCallback,
    RunRecord,
    Status,
    Verdict,
)
from torchparity.run.noise import Noise, NoiseBank
from torchparity.run.recipe import Recipe
from torchparity.run.reference import NeedsPlainKernels, Reference, plain_kernels
from torchparity.run.step import Ending, Plan, Runner
from torchparity.run.subject import Subject

NOISE_RUNS = 6
CANDIDATE_RUNS = 2
FLAKY_RUNS = 5
AMPLITUDE = 4.0
# Two eager runs may differ by this many times eager's own distance from float64.
REPEATABLE = 20.0
# State that lives on after a run: its leaves must be copied to be kept.
LIVING_ROLES = ("parameter", "buffer", "tensor", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How thoroughly to look."""

    tolerance: Tolerance
    noise_runs: int = NOISE_RUNS
    candidate_runs: int = CANDIDATE_RUNS
    reference: bool = True
    progress: ProgressCallback | None = None


@dataclass
class Candidate:
    """One run of the compiled model: its reports, and the leaves that differ."""

    comparison: Comparison
    suspects: dict[str, Leaf]
    failure: Failure | None = None


class Oracle:
    """Runs one subject against one recipe, and says what it saw."""

    def __init__(self, subject: Subject, plan: Plan, recipe: Recipe, settings: Settings) -> None:
        self.subject = subject
        self.plan = plan
        self.recipe = recipe
        self.settings = settings
        self.tolerance = settings.tolerance
        self.runner = Runner(subject, plan)
        self.bank = NoiseBank(plan.seed + 1)
        self.records: list[RunRecord] = []
        self.notes: list[str] = []
        self.expectations: dict[str, Expectation] = {}
        self.reference: Reference | None = None
        self.noise_counter = 0
        self.planned = 2 + settings.noise_runs + settings.candidate_runs
        self.started = time.perf_counter()

    # --- the whole -------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        """Return the verdict, and leave the model as it was found."""
        try:
            with torch.enable_grad():
                return self._judge()
        finally:
            torch.compiler.reset()
            self.runner.release()

    def _judge(self) -> Verdict:
        eager, failure = self._run_eager()
        if failure is not None:
            return self._judge_failing_model(failure)
        self._expect(eager)
        if not self.expectations:
            return self._verdict(Status.UNKNOWN, [reasons.nothing_to_compare()], {})
        if self.plan.backward and not any(
            expectation.leaf.role == "gradient" and expectation.leaf.value is not None
            for expectation in self.expectations.values()
        ):
            self.notes.append(reasons.no_gradient())
        for _ in range(self.settings.noise_runs if self.tolerance.relative is None else 0):
            self._run_noise(self.expectations)
        if self.reference is not None and self.reference.random_operations:
            self.recipe = self.recipe.with_eager_random()
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
            reasons=tuple(why + self.notes),
            leaves=tuple(leaves),
            runs=tuple(self.records),
            recipe=self.recipe.facts(),
            environment=environment(self.runner.device),
            subject=self.subject.title(),
            threshold=self.tolerance.threshold,
            failure=failure,
            differs_in=differs_in,
            seconds=time.perf_counter() - self.started,
        )

    # --- one run ---------------------------------------------------------------------------------

    def _announce(self, name: str) -> None:
        self.planned = max(self.planned, len(self.records) + 1)
        if self.settings.progress is not None:
            self.settings.progress(
                Progress(run=len(self.records) + 1, runs=self.planned, name=name)
            )

    def _record(self, name: str, ending: Ending) -> None:
        failure = ending.failure
        self.records.append(
            RunRecord(
                name=name,
                ending="raised" if failure else "returned",
                seconds=ending.seconds,
                detail=f"{failure.type}: {failure.message}" if failure else "",
            )
        )

    def _run(
        self,
        name: str,
        consume: Callable[[Leaf], None],
        *,
        mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        prepare: Callable[[torch.Tensor], None] | None = None,
    ) -> Ending:
        """Run eager, whatever torch.compile stands inside the model."""
        self._announce(name)
        with torch.compiler.set_stance("force_eager"):
            ending = self.runner.run(self.subject.model, consume, mode=mode, prepare=prepare)
        self._record(name, ending)
        if ending.out_of_memory:
            raise ResourceError(
                f"out of memory in the run '{name}'",
                hint="use smaller inputs, or --no-reference (reference=False) to do without float64",
            )
        return ending

    def _run_eager(self) -> tuple[dict[str, Leaf], Failure | None]:
        leaves: dict[str, Leaf] = {}
        ending = self._run("eager", lambda leaf: leaves.update({leaf.path: kept(leaf)}))
        return leaves, ending.failure

    # --- what is expected ------------------------------------------------------------------------

    def _expect(self, eager: dict[str, Leaf]) -> None:
        """Build the expectations from eager and the float64 reference, and see whether eager repeats itself."""
        repeated: dict[str, Leaf] = {}
        why = "turned off"
        if self.settings.reference:
            why = self._run_reference(eager)
        if self.reference is None:
            self.notes.append(reasons.without_reference(why))
        if self.reference is None or self.reference.plain:
            self._run("eager again", lambda leaf: repeated.update({leaf.path: kept(leaf)}))
        for path, leaf in eager.items():
            if path not in self.expectations:
                self.expectations[path] = Expectation(leaf, None)
        for path, leaf in repeated.items():
            if path in self.expectations:
                self._compare_repeat(self.expectations[path], leaf)

    def _run_reference(self, eager: dict[str, Leaf]) -> str:
        """Run the reference; return why there is none, where there is none."""
        for plain in (False, True):
            reference = Reference(plain=plain)
            self.expectations.clear()

            def consume(leaf: Leaf, reference: Reference = reference) -> None:
                self._consume_reference(eager, leaf, reference)

            try:
                with plain_kernels() if plain else contextlib.nullcontext():
                    ending = self._run("float64 reference", consume, mode=lambda r=reference: r)  # type: ignore[misc]
            except NeedsPlainKernels:
                continue
            if ending.failure is not None:
                self.expectations.clear()
                return f"{ending.failure.type}: {ending.failure.message}"
            self.reference = reference
            if reference.unpromoted:
                self.notes.append(reasons.not_promoted(reference.unpromoted))
            return ""
        return "no plain kernels"

    def _consume_reference(self, eager: dict[str, Leaf], leaf: Leaf, reference: Reference) -> None:
        expected = eager.get(leaf.path)
        if expected is None:
            return
        value = leaf.value
        truth = reference.value(value) if isinstance(value, torch.Tensor) and leaf.changed else None
        if truth is not None and (
            not isinstance(expected.value, torch.Tensor) or truth.shape != expected.value.shape
        ):
            truth = None
        random = isinstance(value, torch.Tensor) and reference.is_random(value)
        expectation = Expectation(expected, truth, random=random)
        self.expectations[leaf.path] = expectation
        if not reference.plain:
            self._compare_repeat(expectation, leaf)
        if leaf.role == "gradient" and isinstance(value, torch.Tensor):
            reference.shadows.forget(value)

    def _compare_repeat(self, expectation: Expectation, again: Leaf) -> None:
        """See whether eager gave the same leaf twice, but for what atomics on a GPU may change."""
        if not expectation.leaf.changed and not again.changed:
            return
        left, right = tensor_of(expectation.leaf.value), tensor_of(again.value)
        if left is None or right is None:
            return
        if left.shape != right.shape or left.dtype != right.dtype:
            expectation.deterministic = False
            return
        if left.layout != torch.strided or identical(left, right):
            return
        for baseline in expectation.parts.values():
            if isinstance(baseline, FloatBaseline):
                expectation.deterministic &= repeats(baseline, right)
            elif isinstance(baseline, ExactBaseline):
                changed = int((left != right).sum())
                expectation.deterministic &= changed * 100 <= left.numel()
        if expectation.deterministic:
            expectation.add(again)

    def _run_noise(
        self,
        targets: dict[str, Expectation],
        *,
        amplitude: float = 1.0,
        watch: Callable[[Leaf], None] | None = None,
    ) -> None:
        """Widen the expectations by one run with noise."""
        self.noise_counter += 1
        replay = self.reference.draws if self.reference is not None else []
        noise = Noise(self.bank, run=self.noise_counter, amplitude=amplitude, replay=replay)

        def consume(leaf: Leaf) -> None:
            expectation = targets.get(leaf.path)
            if expectation is not None:
                if watch is not None:
                    watch(leaf)
                expectation.add(leaf, amplitude=amplitude)

        def prepare(tensor: torch.Tensor) -> None:
            if tensor.dtype in (torch.float32, torch.float64):
                noise.perturb(tensor)

        name = f"noise {self.noise_counter}" if amplitude == 1.0 else "amplified noise"
        self._run(name, consume, mode=lambda: noise, prepare=prepare)

    # --- the candidate ---------------------------------------------------------------------------

    def _judge_failing_model(self, eager: Failure) -> Verdict:
        """Eager raises: the candidate should raise as well."""
        candidate = self._candidate_runner()
        name = self.recipe.backend_name()
        self._announce(name)
        with self.recipe.active():
            ending = self.runner.run(candidate, lambda leaf: None)
        self._record(name, ending)
        if ending.failure is not None:
            return self._verdict(Status.UNKNOWN, [reasons.model_raises(eager)], {}, failure=eager)
        failure = replace(eager, stage="accepts_invalid")
        return self._verdict(
            Status.DIFFERS, [reasons.accepts_invalid(eager)], {}, failure=failure
        )

    def _candidate_runner(self) -> Callable[..., Any]:
        return self.recipe.build(self.subject.model)

    def _run_candidates(self) -> list[Candidate]:
        """Run the compiled model twice, and more often where the runs disagree."""
        candidate = self._candidate_runner()
        found: list[Candidate] = []
        with self.recipe.active():
            wanted = self.settings.candidate_runs
            while len(found) < wanted:
                found.append(self._run_candidate(candidate, len(found) + 1))
                if len({_fails(entry) for entry in found}) > 1:
                    wanted = max(wanted, FLAKY_RUNS)
            if torchapi.graphs_compiled() == 0 and all(entry.failure is None for entry in found):
                self.notes.append(reasons.nothing_compiled())
        return found

    def _run_candidate(self, candidate: Callable[..., Any], number: int) -> Candidate:
        name = f"{self.recipe.backend_name()} {number}"
        self._announce(name)
        reports: dict[str, LeafReport] = {}
        suspects: dict[str, Leaf] = {}

        def consume(leaf: Leaf) -> None:
            expectation = self.expectations.get(leaf.path)
            expected = {} if expectation is None else {leaf.path: expectation}
            if expectation is not None and not expectation.deterministic:
                reports[leaf.path] = self._undecided(expectation)
                return
            judged = compare_all(expected, {leaf.path: leaf}, self.tolerance)
            reports.update(judged.reports)
            if judged.differing:
                suspects[leaf.path] = kept(leaf)

        ending = self.runner.run(candidate, consume)
        self._record(name, ending)
        if ending.out_of_memory:
            self.notes.append(reasons.out_of_memory(name))
        if ending.failure is None:
            seen = set(reports)
            missing = {
                path: expectation
                for path, expectation in self.expectations.items()
                if path not in seen
            }
            reports.update(compare_all(missing, {}, self.tolerance).reports)
        ordered = {path: reports[path] for path in self.expectations if path in reports}
        return Candidate(Comparison({**ordered, **reports}), suspects, ending.failure)

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

    def _decide(self, candidates: list[Candidate]) -> Verdict:
        self._forgive_kinks(candidates)
        self._excuse_random(candidates)
        failing = [entry for entry in candidates if _fails(entry)]
        if not failing:
            return self._decide_same(candidates[0])
        first = failing[0]
        count = (len(failing), len(candidates))
        if len(failing) < len(candidates):
            self.notes.append(reasons.flaky(*count))
        if first.failure is not None:
            if any("out of memory" in note for note in self.notes):
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
        return self._verdict(Status.DIFFERS, [why], reports, differs_in=count)

    def _decide_same(self, candidate: Candidate) -> Verdict:
        reports = candidate.comparison.reports
        unsteady = [path for path, report in reports.items() if report.note == NOT_DETERMINISTIC]
        unknown = [path for path, report in reports.items() if report.status is Status.UNKNOWN]
        if unknown:
            why = [reasons.not_deterministic(unsteady)] if unsteady else []
            return self._verdict(Status.UNKNOWN, why, reports)
        nearer = sum(report.nearer_than_eager for report in reports.values())
        if nearer:
            self.notes.append(reasons.nearer(nearer))
        return self._verdict(Status.SAME, [reasons.all_inside(len(reports))], reports)

    def _forgive_kinks(self, candidates: list[Candidate]) -> None:
        """Where leaves differ in numbers only, see whether amplified noise reaches that far too."""
        if self.tolerance.relative is not None:
            return
        suspects = Suspects(self.expectations, self.tolerance)
        for entry in candidates:
            for path, leaf in entry.suspects.items():
                suspects.add(path, leaf, entry.comparison.reports[path])
        for count in range(suspects.runs_wanted):
            if suspects.decided(count):
                break
            self._run_noise(suspects.expectations, amplitude=AMPLITUDE, watch=suspects.watch)
        forgiven = set()
        for entry in candidates:
            for path, leaf in entry.suspects.items():
                report = suspects.judge_again(path, leaf, entry.comparison.reports[path])
                entry.comparison.reports[path] = report
                if report.status is Status.SAME:
                    forgiven.add(path)
        if forgiven:
            self.notes.append(reasons.kinks(sorted(forgiven)))

    def _excuse_random(self, candidates: list[Candidate]) -> None:
        """Leaves that depend on random numbers cannot be judged where the backend draws its own."""
        excusable = {
            path
            for entry in candidates
            for path in entry.comparison.differing
            if numeric(entry.comparison.reports[path])
            and path in self.expectations
            and self.expectations[path].random
        }
        if not excusable or draws_eager_numbers(self.recipe, self.runner.device):
            return
        for entry in candidates:
            for path in excusable & set(entry.comparison.differing):
                report = entry.comparison.reports[path]
                entry.comparison.reports[path] = replace(
                    report, status=Status.UNKNOWN, note=OTHER_RANDOM
                )
        self.notes.append(
            reasons.other_random_numbers(self.recipe.backend_name(), sorted(excusable))
        )


def kept(leaf: Leaf) -> Leaf:
    """Return a leaf that stays as it is when the run goes on."""
    if leaf.role in LIVING_ROLES and leaf.changed and isinstance(leaf.value, torch.Tensor):
        return replace(leaf, value=leaf.value.clone())
    return leaf


def repeats(baseline: FloatBaseline, again: torch.Tensor) -> bool:
    """Tell whether a second eager run lies within rounding of the first."""
    values = as_real(again).reshape(baseline.layout.rows, baseline.layout.columns)
    apart, error, scale = 0.0, 0.0, 0.0
    for rows, columns in baseline.layout.blocks(baseline.device):
        block = baseline.block(rows, columns)
        there = torch.nan_to_num(values[rows, columns].to(baseline.work), 0.0, 0.0, 0.0)
        apart = max(apart, float((there - block).abs().max()))
        error = max(error, float(baseline.difference(baseline.eager, rows, columns).abs().max()))
        scale = max(scale, float(block.abs().max()))
    return apart <= REPEATABLE * (error + baseline.epsilon * scale)


def _rank(leaf: LeafReport) -> float:
    return max(leaf.score, leaf.aggregate_score)


def _fails(candidate: Candidate) -> bool:
    return candidate.failure is not None or bool(candidate.comparison.differing)
