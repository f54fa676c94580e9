"""What a worker does for `locate`: compile once with taps, and tell the error that each operation introduces.

propagated    the tapped value against what eager computes there: everything that went wrong so far
introduced    the tapped value against what eager makes of the tapped values that the operation was given

The second is a comparison of its own: every operation apart, with the candidate's own inputs, judged by the oracle as
if the tapped values were another compiler's. So one compilation tells both, inside fused kernels too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.compare.judgement import Tolerance
from torchparity.execute.cases import load_case
from torchparity.execute.ground import Settings
from torchparity.execute.isolated import Announce, answer
from torchparity.execute.oracle import Oracle
from torchparity.graphs.extract import Extractor
from torchparity.graphs.part import Part, Setting, placeholders
from torchparity.graphs.recording import alike, copied
from torchparity.records import Kind, LeafReport, ProgressCallback, Status, Verdict
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case, SourceBackend
from torchparity.repro.source import input_names
from torchparity.run.recipe import Recipe
from torchparity.run.state import RandomState
from torchparity.run.step import Plan
from torchparity.run.subject import Subject

TAP_JOB = "torchparity.diagnosis.taps:tap_job"
PART_JOB = "torchparity.diagnosis.taps:part_job"
APART_JOB = "torchparity.diagnosis.taps:apart_job"
GRADIENTS_JOB = "torchparity.diagnosis.taps:gradients_job"
# Where only errors and crashes count, nothing is measured. One run with noise tells whether random numbers are drawn.
ENDING_ONLY = Settings(tolerance=Tolerance(), reference=False, noise_runs=1, candidate_runs=1)
# What replayed values cannot tell: they have been copied.
COPIED = frozenset({Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD, Kind.LAYOUT, Kind.MUTATION})


@dataclass(frozen=True, kw_only=True)
class Keeping(Recipe):
    """A recipe that keeps what the compiled model returned last."""

    kept: list[Any] = field(default_factory=list)

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Compile, and keep copies of the results."""
        compiled = super().build(model)

        def run(*args: Any) -> Any:
            results = compiled(*args)
            self.kept[:] = [copied(result) for result in results]
            return results

        return run


@dataclass(frozen=True, kw_only=True)
class Replayed(Recipe):
    """A recipe that compiles nothing: its model returns what another one computed."""

    results: tuple[Any, ...] = ()

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the results, fresh every time."""
        return lambda *args: tuple(copied(result) for result in self.results)

    @property
    def traces(self) -> bool:
        """Nothing is compiled, and that is as it should be."""
        return False


def tap_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the tapped graph of a bundle; answer with the verdict and what each operation introduces."""
    introduced: dict[str, Any] = {}

    def judge(tell: ProgressCallback) -> Verdict:
        return tap(Path(payload["folder"]), payload["untapped"], introduced, tell)

    return {**answer(judge, announce), "introduced": introduced}


def tap(folder: Path, untapped: Sequence[int], introduced: dict[str, Any], tell: ProgressCallback) -> Verdict:
    """Return the verdict on the tapped graph, its outputs called by the places of their nodes; fill `introduced`."""
    case = read_bundle(folder)
    extractor, recipe, random = opened(case, folder)
    places = {node: place for place, node in enumerate(extractor.compute)}
    left = {extractor.compute[place] for place in untapped}
    tapped = extractor.tapped(left)
    keeping = Keeping(**{name: getattr(recipe, name) for name in Recipe.__dataclass_fields__})
    plan = Plan(backward=False, autocast=autocast_of(case), random=random)
    subject = Subject(tapped.part.graph_module, tapped.part.inputs, name=case.name)
    verdict = Oracle(subject, plan, keeping.validated(), Settings(tolerance=Tolerance(), progress=tell)).judge()
    if len(keeping.kept) == len(tapped.makers):
        values = dict(zip(tapped.nodes, keeping.kept, strict=False))
        rewritten = dict(zip(tapped.rewrites, keeping.kept[len(tapped.nodes) :], strict=True))
        reports = introduced_errors(extractor, values, rewritten, plan)
        introduced |= {str(places[node]): facts_of(report) for node, report in reports.items() if node in places}
    names = {f"output[{number}]": f"node {places.get(node, -1)}" for number, node in enumerate(tapped.makers)}
    leaves = tuple(replace(leaf, path=names.get(leaf.path, leaf.path)) for leaf in verdict.leaves)
    return replace(verdict, leaves=leaves)


def part_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Tell how the part of a bundle's graph ends that has so many operations: its numbers are not looked at."""
    folder = Path(payload["folder"])
    case = read_bundle(folder)

    def judge(tell: ProgressCallback) -> Verdict:
        extractor, recipe, random = opened(case, folder)
        part = extractor.part(extractor.compute[: payload["count"]])
        return judge_part(part, case, recipe, random, replace(ENDING_ONLY, progress=tell))

    return answer(judge, announce)


def apart_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge every distinct operation of a bundle's graph by itself, its gradients too."""
    folder = Path(payload["folder"])
    case = read_bundle(folder)

    def judge(tell: ProgressCallback) -> Verdict:
        extractor, recipe, random = opened(case, folder)
        apart = extractor.apart()
        verdict = judge_part(apart.part, case, recipe, random, Settings(tolerance=Tolerance(), progress=tell))
        places = {node: place for place, node in enumerate(extractor.compute)}
        names = list(input_names(apart.part.graph_module).values())
        owners = {path: f"node {places[node]}" for path, node in apart.owners.items() if node in places}
        leaves = tuple(
            replace(leaf, path=owners.get(named(leaf.path, names), leaf.path), role=leaf.role)
            for leaf in verdict.leaves
        )
        return replace(verdict, leaves=leaves)

    return answer(judge, announce)


def gradients_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the gradient of every value of a bundle's graph; the operations where the first goes wrong are `behind`."""
    folder = Path(payload["folder"])
    case = read_bundle(folder)
    behind: list[int] = []

    def judge(tell: ProgressCallback) -> Verdict:
        extractor, recipe, random = opened(case, folder)
        tapped = extractor.gradients_tapped()
        verdict = judge_part(tapped.part, case, recipe, random, Settings(tolerance=Tolerance(), progress=tell))
        names = list(input_names(tapped.part.graph_module).values())
        wrong = [named(leaf.path, names) for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
        places = {node: place for place, node in enumerate(extractor.compute)}
        found = [node for node in tapped.where_it_begins(wrong) if node in places]
        views = extractor.recording.views  # They only pass gradients on.
        behind.extend(places[node] for node in sorted(found, key=lambda node: node in views))
        return verdict

    return {**answer(judge, announce), "behind": behind}


def named(path: str, names: Sequence[str]) -> str:
    """Return the path of a leaf with the name of the input in it."""
    return re.sub(r"\bargs\[(\d+)\]", lambda found: names[int(found[1])], path)


def judge_part(part: Part, case: Case, recipe: Recipe, random: dict[str, torch.Tensor], settings: Settings) -> Verdict:
    """Judge a part of a case's graph as the case would be."""
    differentiable = any(isinstance(value, torch.Tensor) and value.requires_grad for value in part.inputs)
    plan = Plan(backward=case.backward and differentiable, autocast=autocast_of(case), random=random)
    subject = Subject(part.graph_module, part.inputs, name=case.name)
    return Oracle(subject, plan, recipe.validated(), settings).judge()


def facts_of(report: LeafReport) -> dict[str, Any]:
    """Return what is told of an introduced error."""
    return {
        "status": report.status.value,
        "kind": report.kind,
        "score": max(report.score, report.aggregate_score),
    }


def opened(case: Case, folder: Path | None = None) -> tuple[Extractor, Recipe, dict[str, torch.Tensor]]:
    """Return what makes parts of a case's graph, how it is compiled, and the states of its random generators."""
    loaded = load_case(case, folder)
    model, inputs, random = loaded.make()
    graph_module = loaded.graph_of(model)
    for node in placeholders(graph_module):
        node.type = None
    graph_module.recompile()
    recipe = case.recipe
    if isinstance(recipe.backend, SourceBackend):
        recipe = replace(recipe, backend=recipe.backend.resolve())
    setting = Setting(recipe=recipe, backward=case.backward, autocast=case.autocast)
    around = conditions(random, autocast_of(case), case.autocast[0] if case.autocast else "cpu")
    return Extractor(graph_module, inputs, gradients=case.backward, setting=setting, around=around), recipe, random


def autocast_of(case: Case) -> torch.dtype | None:
    """Return the dtype that a case was captured under."""
    return getattr(torch, case.autocast[1]) if case.autocast else None


@contextlib.contextmanager
def conditions(random: dict[str, torch.Tensor], dtype: torch.dtype | None, device: str) -> Iterator[None]:
    """Hold the random numbers and the autocast that a case was captured under."""
    before = RandomState()
    before.with_torch(random).restore()
    try:
        with torch.autocast(device, dtype=dtype) if dtype is not None else contextlib.nullcontext():
            yield
    finally:
        before.restore()


def introduced_errors(
    extractor: Extractor, values: dict[Node, Any], rewritten: dict[tuple[Node, Node], Any], plan: Plan
) -> dict[Node, LeafReport]:
    """Judge what each operation made of the candidate's own inputs; what draws random numbers cannot be judged so.

    `rewritten` are values as they were after somebody wrote to them, by the value and the writer.
    """
    recording = extractor.recording
    nodes = [node for node in extractor.compute if is_told(node, values, extractor) and not torchapi.draws(node.target)]
    apart = extractor.apart(nodes)

    def shown(node: Node, user: Node, given: Any) -> Any:
        writer = recording.writers.get((node, user))
        value = values.get(node) if writer is None else rewritten.get((node, writer))
        return value if alike(value, given) else given

    inputs = tuple(shown(node, user, given) for (node, user), given in zip(apart.uses, apart.part.inputs, strict=True))
    recipe = Replayed(backend="eager", results=tuple(values[node] for node in apart.results))
    graph_module = rounding_inputs(apart.part.graph_module, inputs)
    settings = Settings(tolerance=Tolerance(ignore=COPIED))
    verdict = Oracle(Subject(graph_module, inputs, name="apart"), plan, recipe, settings).judge()
    reports: dict[Node, LeafReport] = {}
    for leaf in verdict.leaves:
        node = apart.owners.get(leaf.path)
        if node is not None and (node not in reports or leaf.status is Status.DIFFERS):
            reports[node] = leaf
    return reports


def is_told(node: Node, values: dict[Node, Any], extractor: Extractor) -> bool:
    """Tell whether every result of a node was tapped."""
    recording = extractor.recording
    picks = [user for user in node.users if recording.is_pick(user)]
    tensors = [entry for entry in picks or [node] if isinstance(recording.results.get(entry), torch.Tensor)]
    return bool(tensors) and all(entry in values for entry in tensors)


def rounding_inputs(graph_module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """Return a graph whose float inputs pass through an operation that rounds, so that noise moves them too.

    A fused kernel goes on with values that were not yet rounded to what a tap shows.
    """
    graph = graph_module.graph
    nodes = placeholders(graph_module)
    for node, value in zip(nodes, inputs, strict=True):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.requires_grad:
            continue
        if (value * 1.0).stride() == value.stride() and value.storage_offset() == 0:
            with graph.inserting_after(nodes[-1]):
                rounded = graph.call_function(torch.mul, (node, 1.0))
            node.replace_all_uses_with(rounded)
            rounded.args = (node, 1.0)
    graph_module.recompile()
    return graph_module
