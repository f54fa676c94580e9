"""A graph that is about to be compiled, as facts: operations, inputs with their sizes, symbols, graphs inside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.records import Body, GraphInput, SizeSymbol, Span, Subgraph
from torchparity.repro.names import attribute, input_names, is_operation, operation_name


def described(graph_module: GraphModule, number: int) -> Subgraph:
    """Return what is in a graph that is about to be compiled."""
    names = input_names(graph_module)
    inputs, symbols = [], []
    for node, name in names.items():
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            inputs.append(graph_input(node, name, value))
        elif isinstance(value, torch.SymInt):
            symbols.append(size_symbol(value))
    return Subgraph(
        number=number,
        operations=operations_in(graph_module),
        compiled=Span(start=0.0, seconds=0.0),
        inputs=tuple(inputs),
        symbols=tuple(symbols),
        bodies=tuple(bodies_in(graph_module)),
    )


def graph_input(node: Node, name: str, value: torch.Tensor) -> GraphInput:
    """Return an input of a graph as a record; its sizes are those of the run where they are left open."""
    elements = 1
    for size in list[Any](value.shape):
        elements *= int(torchapi.symbol_hint(size) or 0) if isinstance(size, torch.SymInt) else int(size)
    return GraphInput(
        name=name,
        dtype=dtype_name(value),
        sizes=tuple(str(size) for size in value.shape),
        elements=elements,
        state=isinstance(value, torch.nn.Parameter) or "_buffers_" in node.name,
    )


def size_symbol(value: torch.SymInt) -> SizeSymbol:
    """Return a symbolic size as a record."""
    low, high = torchapi.symbol_range(value)
    hint = torchapi.symbol_hint(value)
    return SizeSymbol(name=torchapi.symbol_expression(value), value=hint, low=low, high=high)


def operations_in(graph_module: GraphModule) -> int:
    """Return how many nodes compute something, counted as a case counts them."""
    return sum(is_operation(node) for node in graph_module.graph.nodes)


def bodies_in(graph_module: GraphModule) -> Iterator[Body]:
    """Yield the graphs inside a graph, and those inside them."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torchapi.HigherOrderOperator):
            continue
        for argument in node.all_input_nodes:
            body = attribute(graph_module, str(argument.target)) if argument.op == "get_attr" else None
            if isinstance(body, GraphModule):
                operator = operation_name(node)
                yield Body(operator=operator, name=str(argument.target), operations=operations_in(body))
                yield from bodies_in(body)


def dtype_name(tensor: torch.Tensor) -> str:
    """Return `float32` for `torch.float32`."""
    return str(tensor.dtype).removeprefix("torch.")
