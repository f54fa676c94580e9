"""Minify a case: every question is a bundle, judged by the oracle in a worker of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity.errors import CaseError, UsageError
from torchparity.execute.cases import load_case
from torchparity.execute.isolated import run_bundle
from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool
from torchparity.minifier.extract import Extractor, Part
from torchparity.minifier.reduction import reduce_graph
from torchparity.records import Status, Verdict
from torchparity.repro.bundle import write_bundle
from torchparity.repro.case import Case, make_case, write_graph

SECONDS = 300.0
VERIFICATIONS = 3
# Kinds of difference that a value has where it is made, and that can be seen by looking at intermediate values.
VALUES = ("value", "bias", "nonfinite", "integer")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One query: how many nodes it asked about, and what it heard."""

    compute_nodes: int
    status: Status
    kind: str
    seconds: float


Listener = Callable[[Question], None]


@dataclass(frozen=True, kw_only=True)
class Minified:
    """The smallest case found, how often it was reproduced in fresh processes, and every question on the way."""

    case: Case
    reproduced: tuple[int, int]
    questions: tuple[Question, ...]
    verdict: Verdict


@dataclass
class Chase:
    """Asks about cases in workers, and knows the failure that is chased."""

    case: Case
    pool: Pool
    folder: Path
    limits: Limits
    listen: Listener | None = None
    signature: tuple[str, str] = ("", "")
    questions: list[Question] = field(default_factory=list)

    def ask(self, case: Case) -> Verdict:
        """Judge a case in a worker."""
        path = write_bundle(case, self.folder / f"{len(self.questions) + 1:04d}")
        verdict = run_bundle(path, pool=self.pool, limits=self.limits)
        question = Question(
            compute_nodes=case.compute_nodes, status=verdict.status, kind=verdict.kind, seconds=verdict.seconds
        )
        self.questions.append(question)
        if self.listen is not None:
            self.listen(question)
        return verdict

    def start(self) -> Verdict:
        """See the failure in a worker, and pin it."""
        verdict = self.ask(self.case)
        if verdict.status is not Status.DIFFERS:
            why = verdict.reasons[0] if verdict.reasons else "no reason given"
            raise UsageError(
                f"{self.case.name} does not fail here: {verdict.status.value}, {why}",
                hint="`torchparity run` shows the verdict; there is nothing to make smaller",
            )
        self.signature = signature_of(verdict)
        return verdict

    def fails(self, graph_module: GraphModule, inputs: list[Any]) -> bool:
        """Tell whether a graph fails as the case does."""
        try:
            return signature_of(self.ask(self.case_of(graph_module, inputs))) == self.signature
        except CaseError:
            return False

    def case_of(self, graph_module: GraphModule, inputs: list[Any]) -> Case:
        """Return the case of a smaller graph, compiled as the first one was."""
        case = self.case
        differentiable = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        loaded = load_case(case)
        return make_case(
            write_graph(with_shapes(graph_module, inputs), inputs),
            inputs,
            name=case.name,
            level=case.level,
            direction=case.direction,
            recipe=replace(case.recipe, dynamic=None) if not case.symbols else case.recipe,
            backward=case.backward and differentiable,
            random=loaded.make()[2],
            autocast=case.autocast,
            origin={"smaller than": case.digest},
            environment=case.environment,
        )

    def suspects(self, extractor: Extractor) -> Iterator[Sequence[Node]]:
        """Yield the first node whose value differs when all values are looked at, alone and with what feeds it."""
        if self.signature[0] not in VALUES:
            return
        part, nodes = extractor.tapped()
        culprit = self.first_wrong(part, nodes)
        if culprit is None:
            return
        yield [culprit]
        around = [culprit]
        for _ in range(3):
            feeders = {argument for node in around for argument in node.all_input_nodes}
            around = [node for node in extractor.compute if node in feeders or node in set(around)]
            yield around

    def first_wrong(self, part: Part, nodes: list[Node]) -> Node | None:
        """Ask about every intermediate value at once; return the first node whose value is wrong."""
        try:
            fresh = part.fresh()
            verdict = self.ask(replace(self.case_of(fresh.graph_module, list(fresh.inputs)), backward=False))
        except CaseError:
            return None
        wrong = {leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS}
        return next((node for place, node in enumerate(nodes) if f"output[{place}]" in wrong), None)


def signature_of(verdict: Verdict) -> tuple[str, str]:
    """Return what a failure is recognised by: its kind, and the type of the error."""
    if verdict.status is not Status.DIFFERS:
        return verdict.status.value, ""
    return verdict.kind, verdict.failure.type if verdict.failure is not None else ""


def with_shapes(graph_module: GraphModule, inputs: list[Any]) -> GraphModule:
    """Return a graph that tells the shapes of its inputs."""
    places = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(places, inputs, strict=True):
        if isinstance(value, torch.Tensor):
            node.meta["val"] = value.detach().to("meta")
    return graph_module


def minify(
    case: Case,
    *,
    out: str | Path | None = None,
    limits: Limits | None = None,
    listen: Listener | None = None,
) -> Minified:
    """Return the smallest case found that fails as this one does; with `out`, write its bundle there.

    Each question runs in a process of its own. The failure is pinned at the start: another kind of failure met on
    the way is not followed.
    """
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name, Pool(workers=1) as pool:
        chase = Chase(case, pool, Path(name), limits or Limits(seconds=SECONDS), listen)
        chase.start()
        loaded = load_case(case)
        model, inputs, _ = loaded.make()
        graph_module = loaded.graph_of(model)
        reduced = reduce_graph(
            graph_module, inputs, fails=chase.fails, suspects=chase.suspects, gradients=case.backward
        )
        small = chase.case_of(reduced.graph_module, reduced.inputs)
        small = replace(small, signature={"kind": chase.signature[0], "summary": f"differs in {chase.signature[0]}"})
        verdicts = [chase.ask(small) for _ in range(VERIFICATIONS)]
        again = sum(signature_of(verdict) == chase.signature for verdict in verdicts)
    if out is not None:
        write_bundle(small, Path(out))
    return Minified(
        case=small,
        reproduced=(again, VERIFICATIONS),
        questions=tuple(chase.questions),
        verdict=verdicts[-1],
    )
