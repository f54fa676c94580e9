"""Edits of a part: each is a function from a part to a simpler one, or to None where it does not apply."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity.graphs.part import Part, bodies_of, placeholders
from torchparity.graphs.recording import COMPUTE, Recording
from torchparity.minifier.gate import Gate
from torchparity.minifier.trials import tried
from torchparity.repro.fills import DATA, Fill

Edit = Callable[[Part], Part | None]


def apply_edits(gate: Gate, edits: Sequence[Edit]) -> None:
    """Apply every edit that leaves the failure: all at once, else all but those that must not be. 2 k log2(n / k).

    What would not be smaller than the best is not asked about: nobody would take it.
    """
    start = gate.current

    def smaller(kept: Sequence[Edit]) -> Part | None:
        part = applied(start, [edit for edit in edits if edit not in kept])
        return part if part.size < gate.current.size or part.key == gate.current.key else None

    gate.needed(list(edits), smaller)


def applied(part: Part, edits: Sequence[Edit]) -> Part:
    """Return a part after the edits that apply."""
    for edit in edits:
        part = edit(part) or part
    return part


def graph_copy(part: Part) -> GraphModule:
    """Return a copy of the graph, to be edited."""
    return copy.deepcopy(part.graph_module)


def rebuilt(
    part: Part,
    graph_module: GraphModule,
    inputs: Sequence[Any],
    fills: Sequence[Fill] | None = None,
) -> Part:
    """Return an edited part without inputs that nobody uses; it knows the shapes of its values again."""
    fills = list(fills if fills is not None else [part.fill_of(place) for place in range(len(inputs))])
    kept = []
    for place, node in enumerate(placeholders(graph_module)):
        if node.users:
            kept.append(place)
        else:
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return replace(
        part,
        graph_module=graph_module,
        inputs=tuple(inputs[place] for place in kept),
        fills=tuple(fills[place] for place in kept),
    )


def runs_alike(part: Part, before: Part) -> Part | None:
    """Return a part whose graph the model still takes (or refuses) as it did before, with fresh metadata; else None."""
    if part.graph_module is before.graph_module:  # What is known of its values is not the part's that it was made of.
        part = replace(part, graph_module=graph_copy(part))
    recording = recorded(part)
    if recording is None:
        return None
    refused = recording.raised is not None
    if refused and getattr(recorded(before), "raised", None) is None:
        return None
    for node, result in recording.results.items():
        node.meta = {name: value for name, value in node.meta.items() if name not in ("val", "example_value")}
        if isinstance(result, torch.Tensor):
            node.meta["val"] = result.detach().to("meta")
    for body in bodies_of(part.graph_module).values():
        for node in body.graph.nodes:
            node.meta.pop("val", None)
            node.meta.pop("example_value", None)
    return part


def recorded(part: Part) -> Recording | None:
    """Run a part eagerly; None where that is known to take the process along."""
    return tried(part.key, lambda: Recording(part.graph_module, part.inputs))


def refill(part: Part, place: int, value: torch.Tensor, fill: Fill = DATA) -> Part:
    """Return a part with another tensor as one of its inputs."""
    inputs, fills = list(part.inputs), [part.fill_of(number) for number in range(len(part.inputs))]
    inputs[place], fills[place] = value, fill
    return replace(part, inputs=tuple(inputs), fills=tuple(fills))


def compute_of(graph_module: GraphModule) -> list[Node]:
    """Return the nodes that compute, bodies included."""
    graphs = [graph_module, *bodies_of(graph_module).values()]
    return [node for module in graphs for node in module.graph.nodes if node.op in COMPUTE]


def place_of(part: Part, name: str) -> int | None:
    """Return which input has a name, if one still has."""
    names = [node.name for node in placeholders(part.graph_module)]
    return names.index(name) if name in names else None
