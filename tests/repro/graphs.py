"""Small graphs and cases that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from torchparity.repro.case import Case, make_case, write_graph
from torchparity.request import Request


def graph_of(build: Callable[..., Any], names: list[str], **attributes: Any) -> GraphModule:
    """Return a graph module: `build` gets the graph and its placeholders and returns the output."""
    graph, root = Graph(), torch.nn.Module()
    for name, value in attributes.items():
        setattr(root, name, value)
    graph.output(build(graph, *(graph.placeholder(name) for name in names)))
    return GraphModule(root, graph)


def doubling() -> GraphModule:
    return graph_of(lambda graph, x: (graph.call_function(torch.mul, (x, 2)),), ["x"])


def case_of(graph_module: GraphModule, inputs: list[Any], **facts: Any) -> Case:
    given = {"name": "001_dynamo", "level": "dynamo", "direction": "both", "request": Request(backend="eager"), **facts}
    return make_case(write_graph(graph_module, inputs), inputs, **given)


def small_case(**facts: Any) -> Case:
    """Return the case of a graph that doubles three numbers."""
    return case_of(doubling(), [torch.tensor([1.0, 2.0, 3.0])], **facts)
