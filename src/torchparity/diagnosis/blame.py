"""Blame: which stage of the compiler does it, which pass or operation there, and which setting makes it go away.

A ladder of backends tells how far up the compiler is right. Inside inductor steps are left out, all of a stage first,
then by halves. Settings are tried the same way. Every finding is two runs: one that fails, one that passes.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchparity import torchapi
from torchparity.diagnosis.generated import Generated, kernels_of, read_kernels
from torchparity.diagnosis.halving import fewest
from torchparity.diagnosis.steps import JOB, kernels_beside, read_steps
from torchparity.diagnosis.switches import Switch, settings_in, usable
from torchparity.errors import NothingFails
from torchparity.judge.isolated import verdict_of
from torchparity.judge.reading import Reading, read
from torchparity.records import Blame, Kind, Status, Trial
from torchparity.repro.bundle import read_bundle
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

T = TypeVar("T", bound=Hashable)
Step = tuple[str, str, int]
DECOMPOSED = "aot_eager_decomp_partition"
PASSES = ("pre_grad_passes", "joint_graph_passes", "post_grad_passes")
LOWERINGS, DECOMPOSITION = "lowerings", "decomposition"


class Inquiry:
    """One inquiry into a bundle: runs it under changes, in workers, and keeps every run as a trial."""

    def __init__(
        self, folder: Path, pool: Pool, *, limits: Limits, listen: Callable[[str], None] | None = None
    ) -> None:
        self.folder, self.pool, self.limits, self.listen = folder.resolve(), pool, limits, listen
        self.case = read_bundle(folder)
        self.notes = tempfile.TemporaryDirectory(prefix="torchparity-")
        self.trials: list[Trial] = []
        self.failing: Trial | None = None
        self.kernels: list[Generated] = []
        self.began = time.monotonic()

    def run(self) -> Blame:
        """Climb the ladder, then look inside the rung where it begins to fail."""
        with self.notes:
            return self._run()

    def _run(self) -> Blame:
        self.failing, steps = self.attempt("as it is")
        self.kernels = read_kernels(kernels_beside(self.steps_of(0)))
        if self.failing.status is not Status.DIFFERS:
            raise NothingFails(
                f"{self.case.name} does not fail here: {self.failing.status.value}",
                hint="`torchparity run` shows the verdict; there is nobody to blame",
                unknown=self.failing.status is Status.UNKNOWN,
            )
        backend = self.case.recipe.backend
        if backend in ("eager", "aot_eager", DECOMPOSED):
            return self.below(steps)
        whole, met = self.attempt(f"backend {DECOMPOSED}", backend=DECOMPOSED)
        if whole.status is Status.DIFFERS:  # In whatever way: a change that only alters the failure explains nothing.
            self.failing = whole
            return self.below(met)
        inductor = bool(steps) and self.case.recipe.engine is None
        return self.inside(steps, whole) if inductor else self.foreign(whole)

    # --- asking ------------------------------------------------------------------------------------------

    def attempt(self, change: str, **payload: Any) -> tuple[Trial, list[Step]]:
        """Judge the case under a change; a crash there is an answer like any other."""
        if self.listen is not None:
            self.listen(f"run {len(self.trials) + 1}: {change}")
        steps = self.steps_of(len(self.trials))
        payload = {"folder": str(self.folder), "steps": str(steps), **payload}
        outcome = self.pool.submit(JOB, payload, limits=self.limits).result()
        verdict = verdict_of(outcome, subject=self.case.name, backend=self.case.recipe.backend_name())
        status = verdict.status
        invalid = self.failing is not None and self.failing.kind == Kind.ACCEPTS_INVALID.value
        if invalid and status is Status.UNKNOWN and verdict.failure is not None:
            status = Status.SAME  # It raises, as the model does.
        trial = Trial(change=change, status=status, kind=verdict.kind, seconds=verdict.seconds)
        self.trials.append(trial)
        return trial, read_steps(steps)

    def steps_of(self, number: int) -> Path:
        """Return the file for the steps of a run."""
        return Path(self.notes.name) / f"steps_{number}"

    def without(self, steps: Sequence[Step], what: str, **payload: Any) -> Trial:
        """Judge the case with some steps left out."""
        return self.attempt(f"without {what}", disabled=[list(step) for step in steps], **payload)[0]

    def found(
        self,
        stage: str,
        *,
        part: str = "",
        passing: Trial | None = None,
        switch: Any = None,
        nodes: Sequence[str] | None = None,
    ) -> Blame:
        """Return the finding; with the kernels that compute some nodes, where it is the code that is to blame."""
        assert self.failing is not None
        return Blame(
            subject=self.case.name,
            kind=self.failing.kind,
            stage=stage,
            part=part,
            switch=dict(switch or {}),
            failing=self.failing,
            passing=passing,
            trials=tuple(self.trials),
            kernels=kernels_of(self.kernels, nodes) if nodes is not None else (),
            seconds=time.monotonic() - self.began,
        )

    # --- the rungs ---------------------------------------------------------------------------------------

    def below(self, steps: list[Step]) -> Blame:
        """The failure is there without a code generator: Dynamo, AOTAutograd, a decomposition or the partitioner."""
        backend = self.case.recipe.backend
        right: Trial | None = None
        if backend != "eager":
            if backend != "aot_eager":
                plain, _ = self.attempt("backend aot_eager", backend="aot_eager")
                if plain.status is Status.SAME:
                    return self.decomposed(steps, plain)
                self.failing = plain if plain.status is Status.DIFFERS else self.failing
            right, _ = self.attempt("backend eager", backend="eager")
            if right.status is Status.SAME:
                return self.traced(right)
            if right.status is Status.UNKNOWN:
                return self.found("aot_autograd")  # Nothing clears what is above Dynamo, and nothing accuses Dynamo.
            self.failing = right
        return self.found("dynamo")

    def traced(self, right: Trial) -> Blame:
        """AOTAutograd: an operator that it takes apart while it traces, or what it does besides."""
        backend = "aot_eager" if self.case.recipe.backend != "eager" else "eager"
        culprit = self.one_of(
            torchapi.inductor.traced_apart(),
            lambda names: self.attempt(f"{shown(names)} not taken apart", whole=names, backend=backend)[0],
        )
        if culprit is None:
            return self.found("aot_autograd", passing=right)
        return self.found(DECOMPOSITION, part=", ".join(culprit[0]), passing=culprit[1])

    def decomposed(self, steps: list[Step], right: Trial) -> Blame:
        """A decomposition, or what AOTAutograd does besides."""
        table = [step for step in steps if step[0] == DECOMPOSITION]
        culprit = self.guilty(table, operator_of, "the decomposition of", backend=DECOMPOSED)
        if culprit is None:
            return self.found("partitioner", passing=right)
        return self.found(DECOMPOSITION, part=culprit[0], passing=culprit[1])

    def inside(self, steps: list[Step], right: Trial) -> Blame:
        """Inductor itself: the graphs that it makes, or the code that it writes for them."""
        graphs, met = self.attempt("inductor's graphs, run eagerly", interpret=True)
        if self.failed_alike(graphs):
            self.failing = graphs
            return self.in_graphs(met) or self.found("inductor", passing=right)
        return self.in_code(steps) or self.found(
            "inductor", passing=next((it for it in (graphs, right) if it.status is Status.SAME), None)
        )

    def in_graphs(self, steps: list[Step]) -> Blame | None:
        """Its early passes, or its decompositions."""
        found = self.in_passes(steps, interpret=True)
        if found is not None:
            return found
        table = [step for step in steps if step[0] == DECOMPOSITION]
        culprit = self.guilty(table, operator_of, "the decomposition of", interpret=True)
        return self.found(DECOMPOSITION, part=culprit[0], passing=culprit[1]) if culprit is not None else None

    def in_passes(self, steps: list[Step], **payload: Any) -> Blame | None:
        """One of its passes."""
        passes = [step for step in steps if step[0] in PASSES]
        culprit = self.guilty(passes, lambda step: (step[0], step[1]), "the pass", **payload)
        if culprit is None:
            return None
        stage, name = culprit[0]
        return self.found(stage, part=name, passing=culprit[1], switch={"inductor.disabled_passes": name})

    def in_code(self, steps: list[Step]) -> Blame | None:
        """Its late passes, its settings, its lowerings."""
        found = self.in_passes([step for step in steps if step[0] == PASSES[-1]])
        if found is not None:
            return found
        switch = self.switched()
        lowerings = [step for step in steps if step[0] == LOWERINGS]
        lowering = self.guilty(lowerings, lowered, "the lowering of")
        part = lowering[0] if lowering is not None else ""
        nodes = [step[1] for step in lowerings if lowered(step) == part]
        if switch is not None:
            setting = {switch[0].key: switch[0].value}
            return self.found("codegen", part=part, passing=switch[1], switch=setting, nodes=nodes)
        return self.found(LOWERINGS, part=part, passing=lowering[1], nodes=nodes) if lowering is not None else None

    def foreign(self, right: Trial) -> Blame:
        """A backend that is not torch's: its own options, then operations that it is not given."""
        options = dict(self.case.recipe.options)
        if options:
            bare, _ = self.attempt("without its options", options={})
            if bare.status is Status.SAME:
                names = self.one_of(
                    list(options),
                    lambda left_out: self.attempt(
                        f"without the option {', '.join(left_out)}",
                        options={name: value for name, value in options.items() if name not in left_out},
                    )[0],
                )
                if names is not None:
                    return self.found("backend", part=", ".join(names[0]), passing=names[1])
        operations = sorted(self.operations())
        culprit = self.one_of(operations, lambda names: self.attempt(f"{shown(names)} run eagerly", eager=names)[0])
        if culprit is None:
            return self.found("backend", passing=right)
        return self.found("backend", part=", ".join(culprit[0]), passing=culprit[1])

    def operations(self) -> set[str]:
        """Return the names of the operations that the case's source calls."""
        found = re.findall(r"torch\.ops\.\w+\.(\w+)|torch(?:\.\w+)*\.(\w+)\(|\w+\.(\w+)\(", self.case.graph)
        return {next(filter(None, names)) for names in found}

    # --- halving -----------------------------------------------------------------------------------------

    def guilty(
        self, steps: list[Step], group: Callable[[Step], T], what: str, **payload: Any
    ) -> tuple[T, Trial] | None:
        """Return the one group of steps without which the failure goes, and the run that shows it."""
        groups: dict[T, list[Step]] = {}
        for step in steps:
            groups.setdefault(group(step), []).append(step)

        def leave_out(names: list[T]) -> Trial:
            left = [step for name in names for step in groups[name]]
            said = names[0] if len(names) == 1 else f"{len(names)} of {len(groups)}"
            return self.without(left, f"{what} {' '.join(said) if isinstance(said, tuple) else said}", **payload)

        found = self.one_of(list(groups), leave_out)
        return (found[0][0], found[1]) if found is not None else None

    def switched(self) -> tuple[Switch, Trial] | None:
        """Return a setting that makes the failure go away, and the run that shows it."""
        switches = list(usable(settings_in(self.case.request), torch.device(self.case.device).type))

        def turn(chosen: list[Switch]) -> Trial:
            config = {switch.key: switch.value for switch in chosen}
            said = f"{chosen[0].key}={chosen[0].value!r}" if len(chosen) == 1 else f"{len(chosen)} settings changed"
            return self.attempt(said, config=config)[0]

        found = self.one_of(switches, turn)
        return (found[0][0], found[1]) if found is not None else None

    def one_of(self, candidates: list[T], attempt: Callable[[list[T]], Trial]) -> tuple[list[T], Trial] | None:
        """Return the fewest candidates with which an attempt passes, and the run that shows it."""
        return fewest(candidates, attempt, self.failed_alike)

    def failed_alike(self, trial: Trial) -> bool:
        """Tell whether a trial fails as the case does; another failure tells nothing about the case's."""
        assert self.failing is not None
        return read(trial.status, trial.kind, self.failing.kind) is Reading.FAILS


def lowered(step: Step) -> str:
    """Return the operation that a step of lowering is about, whichever of its uses."""
    return re.sub(r"_\d+$", "", step[1])


def operator_of(step: Step) -> str:
    """Return the operator that a step of decomposition takes apart: `aten.gelu.default`."""
    found = re.search(r"op='([\w.]+)', overload='(\w+)'", step[1])
    return f"{found[1]}.{found[2]}" if found else step[1]


def shown(names: Sequence[str]) -> str:
    """Return a few names in words."""
    return ", ".join(names) if len(names) < 3 else f"{len(names)} operations"
