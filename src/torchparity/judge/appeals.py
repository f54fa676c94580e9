"""Second looks at leaves that differ, or nearly do: what else but an error might explain them.

closer    the rest of the noise runs, where a leaf comes out close
kinks     noise large enough to cross kinks and ties
float64   by itself, where a rounding decides
branches  other ones, where the model decides by its numbers what to run
random    other random numbers than eager's
innocents runs that are right, and are called wrong too
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchparity.compare.aggregates import SHARING
from torchparity.compare.digests import Mark
from torchparity.compare.expectation import Comparison
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf, parts_of
from torchparity.compilers.candidates import Candidate
from torchparity.judge import reasons
from torchparity.judge.branches import Branches, forgiven
from torchparity.judge.ground import LOOKS, Ground
from torchparity.judge.innocents import Innocents, measures
from torchparity.judge.kinks import AMPLITUDE, LEAST, MOST, Suspects, beside_layout, decidable, forgive_values, numeric
from torchparity.judge.truths import truths_of
from torchparity.records import OTHER_RANDOM, Failure, LeafReport, Status
from torchparity.run.reference import Reference
from torchparity.run.state import RandomState

# Shares of the threshold below which a leaf is clear, for numbers that share what is known of the noise around them
# with many others, and for those that do not: with one noise run, with two, and so on. Noise would have to be estimated
# so many times too large for such a leaf to be wrong (docs/design/sequential.md).
CLEAR_BELOW = ((0.35, 0.25), (0.5, 0.36), (0.6, 0.4), (0.65, 0.43), (0.7, 0.45))
# At most so many runs that keep float32 where eager rounds to half precision.
WIDENED_RUNS = 4


@dataclass
class CandidateRun:
    """One run of the compiled model: its reports, and the leaves that differ, or nearly do."""

    comparison: Comparison
    suspects: dict[str, Leaf]
    failure: Failure | None = None
    random_after: RandomState | None = None
    out_of_memory: bool = False
    lost: bool = False
    # What tells its leaves from those of another run.
    marks: dict[str, Mark] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether it raises, or differs."""
        return self.failure is not None or bool(self.comparison.differing)


class Appeals:
    """Hears what can be said for the leaves of some candidate runs; changes their reports where it convinces."""

    def __init__(
        self,
        ground: Ground,
        tolerance: Tolerance,
        candidate: Candidate,
        run: Callable[[Callable[..., Any], str], CandidateRun],
    ) -> None:
        self.ground, self.tolerance, self.candidate, self.run = ground, tolerance, candidate, run
        self.settings = ground.settings

    def hear(self, candidates: list[CandidateRun]) -> None:
        """Look again, in the order of what it costs."""
        self.look_closer(candidates)
        far = self.forgive_kinks(candidates)
        self.ask_float64(candidates)
        self.ask_branches(candidates)
        self.excuse_random(candidates)
        self.ask_innocents(candidates, far=far)

    def look_closer(self, candidates: list[CandidateRun]) -> None:
        """Where a leaf comes out close, or differs, make more noise runs and judge it again, until it is clear."""
        for look in range(len(LOOKS)):
            close = {path for entry in candidates for path in entry.suspects}
            again = self.ground.look_closer(close, look)
            known: dict[int, LeafReport] = {}  # Runs that gave the same share one leaf.
            for entry in candidates:
                for path, leaf in list(entry.suspects.items()):
                    expectation = self.ground.expectations.get(path)
                    if again and expectation is not None and expectation.deterministic:
                        counted = entry.comparison.reports[path].histogram
                        if id(leaf) not in known:
                            known[id(leaf)] = expectation.judge(leaf, self.tolerance, spread=False)
                        judged = known[id(leaf)]
                        entry.comparison.reports[path] = replace(judged, histogram=judged.histogram or counted)
                    report = entry.comparison.reports[path]
                    last = look == len(LOOKS) - 1
                    if report.status is not Status.DIFFERS and (last or is_clear(report, self.tolerance, look + 1)):
                        del entry.suspects[path]

    def forgive_kinks(self, candidates: list[CandidateRun]) -> bool:
        """Where leaves differ in numbers only, see whether amplified noise reaches that far too.

        Return whether some leaf is so far off that no noise came near it.
        """
        if self.tolerance.relative is not None:
            return False
        least = MOST if self.ground.shortens else LEAST
        suspects = Suspects(self.ground.expectations, self.tolerance, least=least)
        for entry in candidates:
            for path, leaf in entry.suspects.items():
                suspects.add(path, leaf, entry.comparison.reports[path])
        runs = 0
        while self.settings.agree("another amplified run?", int(suspects.want_another(runs))):
            self.ground.run_noise(suspects.expectations, amplitude=AMPLITUDE, watch=suspects.watch)
            runs += 1
        widened = 0
        while self.settings.agree("float32 in between?", int(self._may_be_kept(suspects, widened))):
            self.ground.run_widened(suspects.watch_widened, widened)
            widened += 1
        forgiven = set()
        for entry in candidates:
            for path, leaf in entry.suspects.items():
                report = suspects.judge_again(path, leaf, entry.comparison.reports[path])
                entry.comparison.reports[path] = report
                if report.status is Status.SAME:
                    forgiven.add(path)
        if forgiven:
            self.ground.notes.append(reasons.kinks(sorted(forgiven)))
        return suspects.decided(runs)

    def _may_be_kept(self, suspects: Suspects, runs: int) -> bool:
        """Tell whether another run is worth making that keeps float32 where eager rounds to half precision."""
        reference = self.ground.reference
        return runs < WIDENED_RUNS and reference is not None and reference.halves and suspects.unexplained

    def ask_innocents(self, candidates: list[CandidateRun], *, far: bool) -> None:
        """Where numbers differ, see whether runs that are right would be called wrong there as well."""
        accused: dict[str, LeafReport] = {}
        known = self.ground.noise_known and self.tolerance.relative is None
        judged = known and all(entry.failure is None for entry in candidates)
        for entry in candidates if judged else ():
            for path in entry.comparison.differing:
                report = entry.comparison.reports[path]
                if beside_layout(report) and (
                    path not in accused or max(measures(report)) > max(measures(accused[path]))
                ):
                    accused[path] = report
        innocents = Innocents(accused, self.ground.expectations, self.tolerance, far=far)
        runs = 0
        while self.settings.agree("another right run?", int(innocents.want_another(runs))):
            self.ground.run_noise(innocents.expectations, watch=innocents.watch, widen=False)
            runs += 1
        forgiven = innocents.forgiven
        for entry in candidates:
            for path in forgiven & set(entry.comparison.differing):
                entry.comparison.reports[path] = forgive_values(entry.comparison.reports[path])
        if forgiven:
            self.ground.notes.append(reasons.right_runs(sorted(forgiven), runs))

    def ask_float64(self, candidates: list[CandidateRun]) -> None:
        """Where rounding decides, see whether float64, left to itself, stands on the candidate's side of the step."""
        reference = self.ground.reference
        wrong = {
            path
            for entry in candidates
            for path, leaf in entry.suspects.items()
            if entry.comparison.reports[path].status is Status.DIFFERS and decidable(entry.comparison.reports[path])
        }
        # What is exact was never rounded, so no decision can have turned on a rounding.
        wrong = {path for path in wrong if not self.ground.expectations[path].exact}
        if self.ground.truthless_random:
            wrong = {path for path in wrong if not self.ground.expectations[path].random}
        worth = wrong if reference is not None and reference.decisions and self.tolerance.relative is None else set()
        if not self.settings.agree("float64 by itself?", int(bool(worth))):
            return
        truths = self._free_truths(worth)
        agreeing = set()
        for entry in candidates:
            for path in worth & set(entry.suspects) & set(truths):
                expectation = self.ground.expectations[path]
                if expectation.agrees_with(entry.suspects[path], truths[path], self.tolerance):
                    entry.comparison.reports[path] = forgive_values(entry.comparison.reports[path])
                    agreeing.add(path)
        if agreeing:
            self.ground.notes.append(reasons.float64_agrees(sorted(agreeing)))

    def _free_truths(self, paths: set[str]) -> dict[str, dict[str, torch.Tensor]]:
        """Return what float64 by itself gives at some leaves: where rounding decides, it decides without eager."""
        found: dict[str, dict[str, torch.Tensor]] = {}

        def hear(free: Reference, leaf: Leaf) -> None:
            if leaf.path in paths and isinstance(leaf.value, torch.Tensor):
                decided = not (leaf.value.is_floating_point() or leaf.value.is_complex())
                truths = dict(parts_of(leaf.value)) if decided else truths_of(free, leaf.made)
                found[leaf.path] = {suffix: truth.clone() for suffix, truth in truths.items()}

        return found if self.ground.run_free(hear) else {}

    def ask_branches(self, candidates: list[CandidateRun]) -> None:
        """Where the model decides by its numbers what to run, see whether a right run decides as the candidate does."""
        branches = Branches(self.ground, self.tolerance)
        wrong = {path for entry in candidates for path in entry.comparison.differing if entry.failure is None}
        if not self.settings.agree("other branches?", int(bool(wrong) and branches.may_part)):
            return
        branches.go(wrong)
        explained = set()
        for entry in candidates:
            for path in wrong & set(entry.comparison.differing):
                if branches.explains(path, entry.suspects.get(path)):
                    entry.comparison.reports[path] = forgiven(entry.comparison.reports[path])
                    explained.add(path)
        if explained:
            self.ground.notes.append(reasons.other_branch(sorted(explained)))

    def _control_draws_alike(self, strange: list[CandidateRun], paths: set[str]) -> bool:
        """Compile with a backend that is right, and see whether it draws as the candidate does, and agrees with eager.

        Compiling may drop a random number that nothing uses. Then the generators stand elsewhere, and yet
        every number that matters is eager's.
        """
        right = self.candidate.control()
        if right is None:
            return False
        with right.active():
            control = self.run(right.build(self.ground.subject.model), "control")
        return (
            control.failure is None
            and not paths.intersection(control.comparison.differing)
            and all(drew_alike(entry.random_after, control.random_after) for entry in strange)
        )

    def excuse_random(self, candidates: list[CandidateRun]) -> None:
        """Leaves that depend on random numbers cannot be judged where the backend draws others.

        A backend that draws eager's numbers leaves torch's generators where eager leaves them.
        """
        strange = [entry for entry in candidates if not drew_alike(entry.random_after, self.ground.random_after)]
        decides = self.ground.decides_by_random
        excusable = {
            path
            for entry in strange
            for path in entry.comparison.differing
            if decides or (numeric(entry.comparison.reports[path]) and self.ground.depends_on_random(path))
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


def is_clear(report: LeafReport, tolerance: Tolerance, look: int) -> bool:
    """Tell whether a leaf scores so little that no finer estimate of the noise would make it differ."""
    shared, lone = (share * tolerance.threshold for share in CLEAR_BELOW[look])
    if report.elements < SHARING:
        shared = lone
    within = max(report.score, report.aggregate_score) <= shared and report.lone_score <= lone
    return report.status is not Status.DIFFERS and within


def drew_alike(left: RandomState | None, right: RandomState | None) -> bool:
    """Tell whether two runs left every generator at the same place (a run that raised tells nothing)."""
    if left is None or right is None:
        return True
    return left.same_torch_numbers(right) and left.same_python_numbers(right)
