"""A graph as a picture needs it: every node with its code, its source line, what it gave, and where it gets it from."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torchparity.graphs.extract import Extractor
from torchparity.records import DrawnNode
from torchparity.repro.names import called_name, line_of, operation_name

SAMPLE = 4
LONG = 400


def draw(extractor: Extractor) -> tuple[DrawnNode, ...]:
    """Return the nodes of a graph in order, with the values that eager gave them."""
    places = {node: place for place, node in enumerate(extractor.compute)}
    nodes = list(extractor.graph_module.graph.nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    results: dict[Node, Any] = {**extractor.recording.results, **extractor.given}
    return tuple(
        DrawnNode(
            name=node.name,
            role=role_of(node),
            operation=operation_name(node) if node.op.startswith("call") else "",
            code=code_of(node),
            line=line_of(node) if node.op.startswith("call") else "",
            value=shape_text(results.get(node)),
            sample=sample_text(results.get(node)) if node.op != "output" else "",
            inputs=tuple(numbers[argument] for argument in node.all_input_nodes),
            place=places.get(node),
        )
        for node in nodes
    )


def role_of(node: Node) -> str:
    """Return what a node is in the picture: an input, a result, or an operation."""
    return {"placeholder": "input", "get_attr": "constant", "output": "result"}.get(node.op, "operation")


def code_of(node: Node) -> str:
    """Return a node as a line of code."""
    if node.op == "placeholder":
        return node.name
    if node.op == "output":
        return f"return {shown(node.args[0])}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    arguments = [shown(argument) for argument in node.args]
    arguments += [f"{name}={shown(value)}" for name, value in node.kwargs.items()]
    if node.op == "call_method":
        return f"{node.name} = {arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    return f"{node.name} = {called_name(node)}({', '.join(arguments)})"


def shown(argument: Any) -> str:
    """Return an argument as code, cut where it is long."""
    text = repr(argument)
    return text if len(text) <= LONG else f"{text[:LONG]}…"


def shape_text(value: Any) -> str:
    """Return dtype and sizes of a value, of each of several."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return ", ".join(shape_text(entry) for entry in value)[:LONG]
    return "" if value is None else type(value).__name__


def sample_text(value: Any) -> str:
    """Return the first few numbers of a tensor, and its range."""
    if isinstance(value, tuple | list):
        value = next((entry for entry in value if isinstance(entry, torch.Tensor)), None)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return "" if isinstance(value, torch.Tensor) or value is None else shown(value)
    flat = value.detach().reshape(-1)
    few = ", ".join(number_text(number) for number in flat[:SAMPLE].tolist())
    more = ", …" if flat.numel() > SAMPLE else ""
    if flat.is_complex() or flat.dtype == torch.bool or flat.numel() == 1:
        return few + more
    wide = flat.double()
    return f"{few}{more}  (from {number_text(wide.min().item())} to {number_text(wide.max().item())})"


def number_text(number: Any) -> str:
    """Return a number briefly."""
    return f"{number:.5g}" if isinstance(number, float) else str(number)
