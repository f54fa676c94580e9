"""The ground of a verdict: eager, the float64 reference and the noise, and what they lead one to expect."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.expectation import Expectation
from torchparity.compare.facts import fills_its_storage, printed_shape, tensor_of
from torchparity.compare.integers import ExactBaseline
from torchparity.compare.leaves import Leaf, parts_of
from torchparity.compare.matrices import identical
from torchparity.compare.statistics import FloatBaseline
from torchparity.errors import ParityError, ResourceError
from torchparity.judge import reasons
from torchparity.judge.repeating import repeats
from torchparity.judge.settings import Settings
from torchparity.judge.truths import truths_of
from torchparity.records import Failure, Progress, RunRecord
from torchparity.run.bank import NoiseBank, noise_seed
from torchparity.run.noise import Noise
from torchparity.run.operators import poisoned
from torchparity.run.plan import Plan
from torchparity.run.reference import NeedsPlainKernels, Reference, plain_kernels
from torchparity.run.shadows import PROMOTED, WIDENED
from torchparity.run.state import RandomState
from torchparity.run.step import Ending, Runner
from torchparity.run.subject import Subject

# Noise runs before the candidate is looked at; and how many there are after each closer look, where it comes out close.
FIRST_RUNS = 1
LOOKS = (2, 3, 4, 5, math.inf)
EAGER = "eager"
# A candidate's device may be busy for so many times what all of eager took, and for so many seconds at least.
PATIENCE = 20.0
LEAST_PATIENCE = 60.0
# State that lives on after a run: its leaves must be copied to be kept.
LIVING_ROLES = ("parameter", "buffer", "tensor", "optimizer", "attribute")


class Ground:
    """Runs the model itself, in every way that the verdict stands on, and keeps what is expected of a candidate."""

    def __init__(self, subject: Subject, plan: Plan, settings: Settings) -> None:
        self.subject = subject
        self.plan = plan
        self.settings = settings
        self.runner = Runner(subject, plan)
        self.bank = NoiseBank(noise_seed(plan.seed))
        self.records: list[RunRecord] = []
        self.notes: list[str] = []
        self.expectations: dict[str, Expectation] = {}
        self.reference: Reference | None = None
        self.noise_counter = 0
        self.noise_known = False
        self.noise_operations = 0
        self.unjudged: dict[str, str] = {}
        # State of Python's that eager itself does not repeat (a time, an address): nobody can be held to it.
        self.fickle: set[str] = set()
        self.saw_random = False
        # Whether the reference drew other random numbers than eager, so that it says nothing of what depends on them.
        self.truthless_random = False
        # Whether a device may shorten the factors of products, so that noise is large beside a float32 rounding.
        self.shortens = False
        self.raises = False
        self.random_after: RandomState | None = None
        self.patience = LEAST_PATIENCE
        self.planned = 2 + min(FIRST_RUNS, settings.noise_runs) + settings.candidate_runs
        self.candidate_ran = False

    @property
    def draws_random_numbers(self) -> bool:
        """Whether the model uses random numbers (or might: no run has told yet)."""
        if self.reference is not None:
            return bool(self.reference.random_operations) or self.decides_by_random
        return self.saw_random or self.noise_counter == 0

    @property
    def operations(self) -> int:
        """How many operations the model runs; plain kernels, which a reference may need, are more than it has."""
        if self.reference is not None and not (self.reference.plain and self.noise_operations):
            return self.reference.operations
        return self.noise_operations

    @property
    def decides_by_random(self) -> bool:
        """Whether what the model runs may depend on random numbers: it looks at one of torch's, or draws Python's."""
        drawn = self.random_after is not None and not self.random_after.same_python_numbers(self.runner.random)
        return drawn or (self.reference is not None and self.reference.random_read)

    def depends_on_random(self, path: str) -> bool:
        """Tell whether a leaf comes from random numbers; without a reference to tell which, all leaves may."""
        if self.reference is None:
            return self.draws_random_numbers
        return path in self.expectations and self.expectations[path].random

    def prepare(self) -> Failure | None:
        """Run eager, the reference and the noise; return how eager fails, where it does.

        `raises` tells afterwards whether it fails on any rank: then none goes on.
        """
        eager, failure = self._run_eager()
        self.raises = bool(self.settings.agree("does the model raise?", int(failure is not None)))
        if self.raises:
            return failure
        self._expect(eager)
        if self.plan.backward and not any(
            expectation.leaf.role == "gradient" and expectation.leaf.value is not None
            for expectation in self.expectations.values()
        ):
            self.notes.append(reasons.no_gradient())
        if self.settings.tolerance.relative is None:
            for _ in range(min(FIRST_RUNS + self._without_eager(), self.settings.noise_runs)):
                self.run_noise(self.expectations)
        return None

    def _without_eager(self) -> int:
        """Return how many runs have to stand in for eager, which beside a reference is a sample of the noise itself."""
        return int(self.reference is None or self.truthless_random)

    def look_closer(self, paths: Collection[str], look: int) -> bool:
        """Make more noise runs for some leaves, where there are any; tell whether there were."""
        targets = {path: self.expectations[path] for path in paths if path in self.expectations}
        wanted = int(min(LOOKS[look] + self._without_eager(), self.settings.noise_runs)) - self.noise_counter
        wanted = max(0, wanted) if targets and self.settings.tolerance.relative is None else 0
        more = self.settings.agree("more noise runs?", wanted)
        self.planned += more
        for _ in range(more):
            self.run_noise(targets)
        return more > 0

    def own(self, path: str, work: Callable[[], None]) -> None:
        """Do something of ours with a leaf; where that fails, the leaf is not judged, and nobody else is to blame."""
        try:
            work()
        except (ParityError, NeedsPlainKernels):
            raise
        except Exception as error:
            if torchapi.is_out_of_memory(error) or torchapi.is_device_error(error):
                raise
            self.unjudged[path] = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"

    def announce(self, name: str, *, candidate: bool = False) -> None:
        """Tell whoever watches which run is about to start."""
        self.planned = max(self.planned, len(self.records) + 1)
        if self.settings.progress is not None:
            run = Progress(run=len(self.records) + 1, runs=self.planned, name=name, candidate=candidate)
            here = str(self.runner.device)
            self.settings.progress(
                replace(run, after_candidate=self.candidate_ran, device=here, patience=self.patience)
            )
        self.candidate_ran |= candidate

    def record(self, name: str, ending: Ending) -> None:
        """Keep how a run ended."""
        failure = ending.failure
        record = RunRecord(
            name=name,
            ending="raised" if failure else "returned",
            seconds=ending.seconds,
            detail=f"{failure.type}: {failure.message}" if failure else "",
        )
        self.records.append(record)
        if self.settings.ended is not None:
            self.settings.ended(record)

    def _run(
        self,
        name: str,
        consume: Callable[[Leaf], None],
        *,
        mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        state: bool = True,
    ) -> Ending:
        """Run eager, whatever torch.compile stands inside the model."""
        self.announce(name)

        def hear(leaf: Leaf) -> None:
            self.own(leaf.path, lambda: consume(leaf))

        with torchapi.eagerly():
            ending = self.runner.run(self.subject.model, hear, mode=mode, early=True, state=state)
        self.record(name, ending)
        if ending.lost and name != EAGER:
            raise ResourceError(
                f"the device was lost in the run '{name}': {ending.failure.type if ending.failure else ''}",
                hint="start a new process, and look at the indices that the model makes of rounded numbers",
            )
        if ending.out_of_memory:
            raise ResourceError(
                f"out of memory in the run '{name}'",
                hint="use smaller inputs, or --no-reference (reference=False) to do without float64",
            )
        return ending

    def _run_eager(self) -> tuple[dict[str, Leaf], Failure | None]:
        leaves: dict[str, Leaf] = {}
        ending = self._run(EAGER, lambda leaf: leaves.update({leaf.path: kept(leaf)}))
        self.random_after = ending.random
        self.patience = max(LEAST_PATIENCE, PATIENCE * ending.seconds)
        return leaves, ending.failure

    def _expect(self, eager: dict[str, Leaf]) -> None:
        """Build the expectations from eager and the float64 reference, and see whether eager repeats itself."""
        repeated: dict[str, Leaf] = {}
        why = "turned off"
        if self.settings.reference:
            why = self._run_reference(eager)
        if self.reference is None:
            self.notes.append(reasons.without_reference(why))
        if self.settings.agree("eager again?", int(self.reference is None or self.reference.plain)):
            self._run("eager again", lambda leaf: repeated.update({leaf.path: kept(leaf)}))
        for path, leaf in eager.items():
            if path not in self.expectations:
                self.expectations[path] = Expectation(leaf, None)
                if self.reference is not None and leaf.role == "attribute":
                    self.fickle.add(path)
        for path, leaf in repeated.items():
            if path in self.expectations:
                self._compare_repeat(self.expectations[path], leaf, beside_reference=False)

    def run_free(self, hear: Callable[[Reference, Leaf], None]) -> bool:
        """Run the model with float64 deciding where rounding decides; tell whether it came to its end."""
        return self._run_by_itself("float64 by itself", hear, formats=PROMOTED)

    def run_widened(self, hear: Callable[[Reference, Leaf], None], run: int) -> bool:
        """Run the model as code computes that keeps float32 where eager rounds to half precision.

        The first time everywhere, then at every second result, by chance: fused code does so where it likes.
        """
        drawn = random.Random(f"kept {self.bank.seed} {run}")
        keeps = (lambda: drawn.random() < 0.5) if run else None
        return self._run_by_itself(f"float32 in between {run + 1}", hear, formats=WIDENED, keeps=keeps)

    def _run_by_itself(self, name: str, hear: Callable[[Reference, Leaf], None], **options: Any) -> bool:
        plain = self.reference is not None and self.reference.plain
        free = Reference(plain=plain, free=True, **options)
        with plain_kernels() if plain else contextlib.nullcontext():
            ending = self._run(name, lambda leaf: hear(free, leaf), mode=lambda: free)
        return ending.failure is None

    def _run_reference(self, eager: dict[str, Leaf]) -> str:
        """Run the reference; return why there is none, where there is none."""
        for plain in (False, True):
            reference = Reference(plain=plain, exact=self.settings.on_exact_data)
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
            if plain and self._drew_otherwise(ending):
                self._forget_random_truths(eager, reference)
            if reference.unpromoted:
                self.notes.append(reasons.not_promoted(reference.unpromoted))
            return ""
        return "no plain kernels"

    def _drew_otherwise(self, ending: Ending) -> bool:
        after = self.random_after
        return after is not None and ending.random is not None and not ending.random.same_torch_numbers(after)

    def _forget_random_truths(self, eager: dict[str, Leaf], reference: Reference) -> None:
        """Let the noise alone decide where plain kernels drew other random numbers than eager's: another mask, say."""
        self.truthless_random = True
        for path, expectation in self.expectations.items():
            if expectation.random:
                self.expectations[path] = Expectation(eager[path], None, random=True)
        reference.draws.clear()
        self.notes.append(reasons.random_without_reference())

    def _consume_reference(self, eager: dict[str, Leaf], leaf: Leaf, reference: Reference) -> None:
        expected = eager.get(leaf.path)
        if expected is None:
            return
        value = leaf.made
        truths, random, origin = None, False, None
        if isinstance(value, torch.Tensor) and torchapi.has_values(value):
            truths = truths_of(reference, value) if leaf.changed else None
            random = any(reference.is_random(part) for _, part in parts_of(value))
            origin = reference.origin(value)
        expectation = Expectation(expected, truths, random=random, origin=origin)
        if reference.exactness is not None and isinstance(value, torch.Tensor) and leaf.changed:
            expectation.exact = all(reference.exactness.is_exact(part) for _, part in parts_of(value))
        if reference.poisoned:
            self._note_poison(expectation, value)
        self.expectations[leaf.path] = expectation
        if not reference.plain:
            self._compare_repeat(expectation, leaf, beside_reference=True)
        if leaf.role == "gradient" and isinstance(value, torch.Tensor) and fills_its_storage(value):
            reference.shadows.forget(value)  # Gradients that share a bucket share its shadow.

    def _compare_repeat(self, expectation: Expectation, again: Leaf, *, beside_reference: bool) -> None:
        """See whether eager gave the same leaf twice, but for what atomics on a GPU may change."""
        if not expectation.leaf.changed and not again.changed:
            return
        left, right = tensor_of(expectation.leaf.value), tensor_of(again.value)
        if again.role == "attribute" and not isinstance(again.value, torch.Tensor):
            if expectation.leaf.value != again.value:
                self.fickle.add(again.path)
            return
        if left is None or right is None:
            return
        if printed_shape(left) != printed_shape(right) or left.dtype != right.dtype:
            expectation.deterministic = False
            return
        if left.layout != torch.strided or left.is_nested or identical(left, right):
            return
        for baseline in expectation.parts.values():
            if isinstance(baseline, FloatBaseline):
                expectation.deterministic &= repeats(baseline, right, beside_reference=beside_reference)
            elif isinstance(baseline, ExactBaseline):
                changed = int((left != right).sum())
                expectation.deterministic &= changed * 100 <= left.numel()
        if expectation.deterministic:
            expectation.add(again)

    @staticmethod
    def _note_poison(expectation: Expectation, value: Any) -> None:
        """Note where a result shows what unwritten memory was filled with; it may be that by chance."""
        found = tensor_of(value)
        if found is None or not torchapi.in_memory(found):
            return
        shown = poisoned(found)
        if bool(shown.any()):
            expectation.poisoned = shown

    @staticmethod
    def _heed_poison(expectation: Expectation, sample: Leaf) -> None:
        """See whether what looked like unwritten memory is something else where that was filled with other numbers."""
        found = tensor_of(sample.value)
        shown = expectation.poisoned
        if shown is None or found is None or found.shape != shown.shape:
            return
        if bool((shown & ~poisoned(found)).any()):
            expectation.uninitialised, expectation.deterministic = True, False

    def run_noise(
        self,
        targets: dict[str, Expectation],
        *,
        amplitude: float = 1.0,
        watch: Callable[[Leaf], None] | None = None,
        widen: bool = True,
    ) -> bool:
        """Widen the expectations by one run with noise, or only watch it; tell whether it came to its end."""
        self.noise_counter += 1
        replay = self.reference.draws if self.reference is not None else []
        noise = Noise(self.bank, run=self.noise_counter, amplitude=amplitude, replay=replay, thorough=not widen)

        def consume(leaf: Leaf) -> None:
            expectation = targets.get(leaf.path)
            if expectation is not None:
                if expectation.poisoned is not None:
                    self._heed_poison(expectation, leaf)
                if watch is not None:
                    watch(leaf)
                if widen:
                    expectation.add(leaf, amplitude=amplitude)

        plain = f"noise {self.noise_counter}" if widen else "right run"
        name = plain if amplitude == 1.0 else "amplified noise"
        # State that eager leaves alone has nothing to widen: comparing it all costs as much as a forward pass.
        state = watch is not None or any(entry.parts for entry in targets.values() if entry.leaf.role in LIVING_ROLES)
        ending = self._run(name, consume, mode=lambda: noise, state=state)
        if ending.failure is None:
            self.noise_known |= widen and amplitude == 1.0
            self.noise_operations = noise.operations
        elif (told := reasons.noise_failed(ending.failure)) not in self.notes:
            self.notes.append(told)
        self.saw_random |= noise.saw_random
        self.shortens |= noise.shortens
        if noise.undefined and (told := reasons.undefined_casts()) not in self.notes:
            self.notes.append(told)
        return ending.failure is None


def kept(leaf: Leaf, *, reused: bool = False) -> Leaf:
    """Return a leaf that stays as it is when the run goes on, and when the next one writes to the same memory."""
    if (reused or leaf.role in LIVING_ROLES) and leaf.changed and isinstance(leaf.value, torch.Tensor):
        leaf = replace(leaf, value=leaf.value.clone())
    return leaf if leaf.original is None else replace(leaf, original=None)
