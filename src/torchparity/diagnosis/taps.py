"""What a worker does for `locate`: compile once with taps, and tell the error that each operation introduces.

propagated    the tapped value against what eager computes there: everything that went wrong so far
introduced    the tapped value against what eager makes of the tapped values that the operation was given

The second is a comparison of its own: every operation apart, with the candidate's own inputs, judged by the oracle as
if the tapped values were another compiler's. So one compilation tells both, inside fused kernels too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.compare.judgement import Tolerance
from torchparity.compilers.candidates import Compiled, Given, Keeping
from torchparity.diagnosis.leading import leading
from torchparity.diagnosis.picture import draw
from torchparity.graphs.extract import Extractor, opened_graph
from torchparity.graphs.part import Part, placeholders
from torchparity.graphs.recording import alike, copied
from torchparity.judge.cases import named
from torchparity.judge.isolated import Announce, answer
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import Settings, settings_of
from torchparity.records import Kind, LeafReport, Progress, ProgressCallback, Status, Verdict
from torchparity.records.wire import plain_data
from torchparity.repro.bundle import read_bundle
from torchparity.repro.names import input_names
from torchparity.repro.opening import open_case
from torchparity.run.plan import Plan
from torchparity.run.subject import Subject

LOOK_JOB = "torchparity.diagnosis.taps:look_job"
TAP_JOB = "torchparity.diagnosis.taps:tap_job"
PART_JOB = "torchparity.diagnosis.taps:part_job"
APART_JOB = "torchparity.diagnosis.taps:apart_job"
GRADIENTS_JOB = "torchparity.diagnosis.taps:gradients_job"
# What replayed values cannot tell: they have been copied.
COPIED = frozenset({Kind.STRIDE, Kind.ALIAS, Kind.REQUIRES_GRAD, Kind.LAYOUT, Kind.MUTATION})


class Bench:
    """The graph of a bundle in a worker: opened, run once, ready to be judged in parts."""

    def __init__(self, payload: dict[str, Any]) -> None:
        folder = Path(payload["folder"])
        self.case = read_bundle(folder)
        self.opened = open_case(self.case, folder)
        self.extractor = opened_graph(self.opened)
        self.random = self.opened.make()[2]
        self.places = {node: place for place, node in enumerate(self.extractor.compute)}

    def settings(self, tell: ProgressCallback) -> Settings:
        """Return how the bundle wants to be judged."""
        return settings_of(self.case.request, progress=tell)

    def judge(self, part: Part, settings: Settings) -> Verdict:
        """Judge a part of the graph as the bundle would be."""
        differentiable = any(isinstance(value, torch.Tensor) and value.requires_grad for value in part.inputs)
        plan = self.opened.plan(self.random, backward=self.case.backward and differentiable)
        subject = Subject(part.graph_module, part.inputs, name=self.case.name)
        verdict = Oracle(subject, plan, Compiled(self.opened.recipe()), settings).judge()
        names = list(input_names(part.graph_module).values())
        return replace(verdict, leaves=tuple(replace(leaf, path=named(leaf.path, names)) for leaf in verdict.leaves))


def look_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Run the graph of a bundle once, eagerly; answer with its nodes, its outputs, and the one that it refuses."""
    bench = Bench(payload)
    extractor, places = bench.extractor, bench.places
    return {
        "nodes": plain_data(draw(extractor)),
        "outputs": [places[node] for node in extractor.output.all_input_nodes if node in places],
        "raised": places.get(extractor.recording.raised) if extractor.recording.raised is not None else None,
    }


def tap_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the tapped graph of a bundle; answer with the verdict and what each operation introduces."""
    introduced: dict[str, Any] = {}

    def judge(tell: ProgressCallback) -> Verdict:
        bench = Bench(payload)
        return tap(bench, payload["untapped"], introduced, bench.settings(tell))

    return {**answer(judge, announce), "introduced": introduced}


def tap(bench: Bench, untapped: Sequence[int], introduced: dict[str, Any], settings: Settings) -> Verdict:
    """Return the verdict on the tapped graph, its outputs called by the places of their nodes; fill `introduced`."""
    extractor, places = bench.extractor, bench.places
    tapped = extractor.tapped({extractor.compute[place] for place in untapped})
    keeping = Keeping(bench.opened.recipe(), copied=copied)
    plan = bench.opened.plan(bench.random, backward=False)
    subject = Subject(tapped.part.graph_module, tapped.part.inputs, name=bench.case.name)
    verdict = Oracle(subject, plan, keeping, settings).judge()
    if len(keeping.kept) == len(tapped.makers):
        values = dict(zip(tapped.nodes, keeping.kept, strict=False))
        rewritten = dict(zip(tapped.rewrites, keeping.kept[len(tapped.nodes) :], strict=True))
        if settings.progress is not None:  # What dies from here on is eager, and not the candidate.
            settings.progress(Progress(run=len(verdict.runs), runs=len(verdict.runs), name="each operation again"))
        reports = introduced_errors(extractor, values, rewritten, plan)
        introduced |= {str(places[node]): facts_of(report) for node, report in reports.items() if node in places}
        wrong = [node for node, report in reports.items() if report.status is Status.DIFFERS and node in values]
        for node, leads in leading(extractor, values, wrong).items() if len(wrong) > 1 else ():
            introduced[str(places[node])]["leads"] = leads
    names = {f"output[{number}]": f"node {places.get(node, -1)}" for number, node in enumerate(tapped.makers)}
    leaves = tuple(replace(leaf, path=names.get(leaf.path, leaf.path)) for leaf in verdict.leaves)
    return replace(verdict, leaves=leaves)


def part_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Tell how the part of a bundle's graph ends that has so many operations: its numbers are not looked at."""

    def judge(tell: ProgressCallback) -> Verdict:
        bench = Bench(payload)
        part = bench.extractor.part(bench.extractor.compute[: payload["count"]])
        # Nothing is measured. One run with noise tells whether random numbers are drawn.
        return bench.judge(part, Settings(reference=False, noise_runs=1, candidate_runs=1, progress=tell))

    return answer(judge, announce)


def apart_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge every distinct operation of a bundle's graph by itself, its gradients too."""

    def judge(tell: ProgressCallback) -> Verdict:
        bench = Bench(payload)
        apart = bench.extractor.apart()
        verdict = bench.judge(apart.part, bench.settings(tell))
        owners = {path: f"node {bench.places[node]}" for path, node in apart.owners.items() if node in bench.places}
        leaves = tuple(replace(leaf, path=owners.get(leaf.path, leaf.path)) for leaf in verdict.leaves)
        return replace(verdict, leaves=leaves)

    return answer(judge, announce)


def gradients_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the gradient of every value of a bundle's graph; the operations where the first goes wrong are `behind`."""
    behind: list[int] = []

    def judge(tell: ProgressCallback) -> Verdict:
        bench = Bench(payload)
        tapped = bench.extractor.gradients_tapped()
        verdict = bench.judge(tapped.part, bench.settings(tell))
        wrong = [leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
        found = [node for node in tapped.where_it_begins(wrong) if node in bench.places]
        views = bench.extractor.recording.views  # They only pass gradients on.
        behind.extend(bench.places[node] for node in sorted(found, key=lambda node: node in views))
        return verdict

    return {**answer(judge, announce), "behind": behind}


def facts_of(report: LeafReport) -> dict[str, Any]:
    """Return what is told of an introduced error."""
    score = max(report.score, report.aggregate_score)
    return {"status": report.status.value, "kind": report.kind, "score": score}


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
    replayed = Given(replay([values[node] for node in apart.results]))
    graph_module = rounding_inputs(apart.part.graph_module, inputs)
    settings = Settings(tolerance=Tolerance(ignore=COPIED))
    verdict = Oracle(Subject(graph_module, inputs, name="apart"), plan, replayed, settings).judge()
    reports: dict[Node, LeafReport] = {}
    for leaf in verdict.leaves:
        node = apart.owners.get(leaf.path)
        if node is not None and (node not in reports or leaf.status is Status.DIFFERS):
            reports[node] = leaf
    return reports


def replay(results: Sequence[Any]) -> Callable[..., Any]:
    """Return a model that computes nothing: its results are those of another one, fresh every time."""
    return lambda *args: tuple(copied(result) for result in results)


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
