"""Reduce inside the bodies of higher-order operators (`cond`, `while_loop`, checkpointing)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Protocol

import torch
from torch.fx import GraphModule, Node

from torchparity.minifier.extract import Part
from torchparity.minifier.recording import COMPUTE
from torchparity.minifier.search import needed

Place = tuple[str, str]


class Asks(Protocol):
    """What is needed of the gate."""

    best: Part | None

    def fails(self, part: Part) -> bool:
        """Ask whether a part fails."""


def reduce_bodies(gate: Asks) -> None:
    """Leave out nodes of bodies that the failure does not need, all bodies together.

    cond(p, x -> f(g(x)), x -> h(x)) -> cond(p, x -> g(x), x -> x). About 2 k log2(n / k) queries.
    """
    part = gate.best
    if part is None:
        return
    places = [
        (path, node.name)
        for path, body in bodies_of(part.graph_module).items()
        for node in body.graph.nodes
        if node.op in COMPUTE
    ]
    if not places:
        return

    def fails(kept: list[Place]) -> bool:
        smaller = without(part, [place for place in places if place not in set(kept)])
        return smaller is not None and gate.fails(smaller)

    if fails([]):
        return
    needed(places, fails)


def bodies_of(graph_module: GraphModule) -> dict[str, GraphModule]:
    """Return the graph modules that a graph's operators are given, by path."""
    used = {str(node.target) for node in graph_module.graph.nodes if node.op == "get_attr"}
    return {
        name: module
        for name, module in graph_module.named_modules()
        if isinstance(module, GraphModule) and name and name.split(".")[0] in {path.split(".")[0] for path in used}
    }


def without(part: Part, left_out: Iterable[Place]) -> Part | None:
    """Return a part whose bodies lack some nodes, each replaced by an argument that is alike; None where none is."""
    made = copy.deepcopy(part.graph_module)
    bodies = bodies_of(made)
    by_path: dict[str, set[str]] = {}
    for path, name in left_out:
        by_path.setdefault(path, set()).add(name)
    removed = 0
    for path, names in by_path.items():
        for node in reversed(list(bodies[path].graph.nodes)):
            if node.name in names:
                argument = next((source for source in node.all_input_nodes if same_shape(source, node)), None)
                if argument is None:
                    continue
                node.replace_all_uses_with(argument)
                bodies[path].graph.erase_node(node)
                removed += 1
        bodies[path].recompile()
    return Part(made, part.inputs, part.compute_nodes) if removed else None


def same_shape(left: Node, right: Node) -> bool:
    """Tell whether two nodes of a body give the same shape and dtype, as far as their metadata says."""
    first, second = (node.meta.get("val", node.meta.get("example_value")) for node in (left, right))
    if first is None or second is None:
        return True
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype
