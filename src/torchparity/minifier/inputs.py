"""Fewer and plainer inputs: merged, inlined, of plain dtypes, filled by a rule instead of by data."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch.fx.node import map_aggregate, map_arg

from torchparity.graphs.part import Part, constants_of, placeholders
from torchparity.graphs.recording import alike
from torchparity.minifier.edits import (
    Edit,
    apply_edits,
    compute_of,
    graph_copy,
    place_of,
    rebuilt,
    refill,
    runs_alike,
)
from torchparity.minifier.gate import Gate
from torchparity.minifier.shapes import laid_out
from torchparity.repro.fills import DATA, LITERAL, ROUNDED, RULES, Fill, filled, plain_dtype, rounded

PLAIN = {True: torch.float32, False: torch.int64}


def merge_inputs(gate: Gate) -> None:
    """Give two alike inputs as one: f(x, y) -> f(x, x). One query where all can be."""
    apply_edits(gate, merging(gate.current))


def merging(part: Part) -> list[Edit]:
    """Return an edit for each input that could be one before it, or a number in the graph."""
    nodes = placeholders(part.graph_module)
    edits: list[Edit] = []
    for place, node in enumerate(nodes):
        value = part.inputs[place]
        if isinstance(value, int | float | bool):
            edits.append(functools.partial(inlined, name=node.name))
            continue
        before = (other for number, other in enumerate(nodes[:place]) if alike(part.inputs[number], value))
        first = next(before, None)
        if first is not None:
            edits.append(functools.partial(merged, name=node.name, into=first.name))
    return edits


def merged(part: Part, *, name: str, into: str) -> Part | None:
    """Return a part in which one input stands for another."""
    graph_module = graph_copy(part)
    nodes = {node.name: node for node in placeholders(graph_module)}
    if name not in nodes or into not in nodes:
        return None
    nodes[name].replace_all_uses_with(nodes[into])
    return rebuilt(part, graph_module, part.inputs)


def inlined(part: Part, *, name: str) -> Part | None:
    """Return a part in which a number that was an input stands in the graph."""
    place = place_of(part, name)
    if place is None:
        return None
    graph_module = graph_copy(part)
    node = placeholders(graph_module)[place]
    for user in list(node.users):
        if user.op == "output":
            return None
        user.args = map_arg(user.args, lambda used: part.inputs[place] if used is node else used)
        user.kwargs = map_arg(user.kwargs, lambda used: part.inputs[place] if used is node else used)
    return rebuilt(part, graph_module, part.inputs)


def lift_constants(part: Part) -> Part | None:
    """Return a part that takes the tensors it held as inputs."""
    held = constants_of(part.graph_module)
    if not held:
        return None
    graph_module = graph_copy(part)
    inputs, fills = list(part.inputs), [part.fill_of(place) for place in range(len(part.inputs))]
    last = placeholders(graph_module)[-1] if part.inputs else None
    for path, value in held.items():
        users = [node for node in graph_module.graph.nodes if node.op == "get_attr" and node.target == path]
        graph = graph_module.graph
        with graph.inserting_after(last) if last is not None else graph.inserting_before(next(iter(graph.nodes))):
            last = graph.placeholder(path.split(".")[-1].lstrip("_") or "constant")
        for node in users:
            node.replace_all_uses_with(last)
            graph.erase_node(node)
        inputs.append(value.detach().clone().requires_grad_(value.requires_grad))
        fills.append(DATA)
    return rebuilt(part, graph_module, inputs, fills)


def plain_dtypes(part: Part) -> list[Edit]:
    """Return an edit for each dtype that is not plain."""
    found = {value.dtype for value in part.tensors() if not plain_dtype(value.dtype) and not value.dtype.is_complex}
    return [functools.partial(retyped, dtype=dtype) for dtype in sorted(found, key=str)]


def retyped(part: Part, *, dtype: torch.dtype) -> Part | None:
    """Return a part in which float32 or int64 stands for another dtype."""
    new = PLAIN[dtype.is_floating_point]
    graph_module = graph_copy(part)
    for node in compute_of(graph_module):
        node.args = map_aggregate(node.args, lambda leaf: new if leaf is dtype else leaf)
        node.kwargs = map_aggregate(node.kwargs, lambda leaf: new if leaf is dtype else leaf)
    inputs = [
        value.detach().to(new).requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor) and value.dtype == dtype
        else value
        for value in part.inputs
    ]
    return runs_alike(rebuilt(part, graph_module, inputs), part)


def fill_inputs(gate: Gate) -> None:
    """Fill inputs by a rule: ones, else `arange`, else seeded numbers, else rounded ones. One query for each rule."""
    for fill in (*RULES, ROUNDED):
        apply_edits(gate, filling(gate.current, fill))


def filling(part: Part, fill: Fill) -> list[Edit]:
    """Return an edit for each input that a rule would make plainer."""
    return [
        functools.partial(refilled, name=node.name, fill=fill)
        for place, (node, value) in enumerate(zip(placeholders(part.graph_module), part.inputs, strict=True))
        if isinstance(value, torch.Tensor) and part.fill_of(place).rank > fill.rank
    ]


def refilled(part: Part, *, name: str, fill: Fill) -> Part | None:
    """Return a part with one input filled by a rule."""
    place = place_of(part, name)
    value: Any = part.inputs[place] if place is not None else None
    if place is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    if fill is ROUNDED:
        made = rounded(value) if value.numel() <= LITERAL else None
    else:
        made = filled(tuple(value.shape), value.dtype, fill)
    if made is None:
        return None
    made = laid_out(made.to(value.device), value).requires_grad_(value.requires_grad)
    return runs_alike(refill(part, place, made, fill), part)


def plain_layouts(part: Part) -> list[Edit]:
    """Return an edit for each input that is not laid out plainly, or whose gradient need not be wanted."""
    edits: list[Edit] = []
    for node, value in zip(placeholders(part.graph_module), part.inputs, strict=True):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        if not value.is_contiguous():
            edits.append(functools.partial(contiguous, name=node.name))
        if value.requires_grad:
            edits.append(functools.partial(without_gradient, name=node.name))
    return edits


def contiguous(part: Part, *, name: str) -> Part | None:
    """Return a part with one input laid out row by row."""
    place = place_of(part, name)
    if place is None:
        return None
    value = part.inputs[place]
    made = value.detach().clone(memory_format=torch.contiguous_format).requires_grad_(value.requires_grad)
    return refill(part, place, made, part.fill_of(place))


def without_gradient(part: Part, *, name: str) -> Part | None:
    """Return a part in which one input wants no gradient."""
    place = place_of(part, name)
    if place is None or (part.setting is not None and part.setting.gradients and gradients_wanted(part) < 2):
        return None
    return refill(part, place, part.inputs[place].detach().clone(), part.fill_of(place))


def gradients_wanted(part: Part) -> int:
    """Return how many inputs want a gradient."""
    return sum(isinstance(value, torch.Tensor) and value.requires_grad for value in part.inputs)


def without_backward(part: Part) -> Part | None:
    """Return a part of which only the forward pass is looked at, and of which no input wants a gradient."""
    if part.setting is None or not (part.setting.gradients or gradients_wanted(part)):
        return None
    inputs = tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in part.inputs)
    return replace(part, inputs=inputs, setting=replace(part.setting, backward=False))
