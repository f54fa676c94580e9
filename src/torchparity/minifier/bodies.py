"""Reduce inside the bodies of higher-order operators (`cond`, `while_loop`, checkpointing)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.fx import Node

from torchparity.graphs.part import Part, bodies_of
from torchparity.graphs.recording import COMPUTE
from torchparity.minifier.gate import Gate

Place = tuple[str, str]


def reduce_bodies(gate: Gate) -> None:
    """Leave out nodes of bodies that the failure does not need, all bodies together.

    cond(p, x -> f(g(x)), x -> h(x)) -> cond(p, x -> g(x), x -> x). About 2 k log2(n / k) queries.
    """
    part = gate.current
    places = [
        (path, node.name)
        for path, body in bodies_of(part.graph_module).items()
        for node in body.graph.nodes
        if node.op in COMPUTE
    ]
    gate.needed(places, lambda kept: without(part, [place for place in places if place not in set(kept)]))


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
    return replace(part, graph_module=made) if removed else None


def same_shape(left: Node, right: Node) -> bool:
    """Tell whether two nodes of a body give the same shape and dtype, as far as their metadata says."""
    first, second = (node.meta.get("val", node.meta.get("example_value")) for node in (left, right))
    if first is None or second is None:
        return True
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype
