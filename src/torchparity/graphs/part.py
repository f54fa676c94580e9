"""What a minification makes smaller: a graph, its inputs, and how they are compiled. Frozen; ordered by size."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity.compilers.recipe import recipe_plain
from torchparity.graphs.recording import COMPUTE, copied_together
from torchparity.repro.fills import DATA, Fill, plain_dtype
from torchparity.request import Request

Size = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Part:
    """A graph, the inputs it takes, how many of its nodes count, how its inputs are filled, how it is compiled."""

    graph_module: GraphModule
    inputs: tuple[Any, ...]
    compute_nodes: int
    fills: tuple[Fill, ...] = field(default=())
    setting: Request | None = None

    def fresh(self) -> Part:
        """Return a copy that may be changed."""
        return replace(self, graph_module=copy.deepcopy(self.graph_module), inputs=copied_together(self.inputs))

    def fill_of(self, place: int) -> Fill:
        """Return how an input is filled: as it was, unless it was made simpler."""
        return self.fills[place] if self.fills else DATA

    @property
    def elements(self) -> int:
        """How many numbers the inputs hold."""
        return sum(value.numel() for value in self.tensors())

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it takes or holds."""
        yield from (value for value in self.inputs if isinstance(value, torch.Tensor))
        yield from constants_of(self.graph_module).values()

    @functools.cached_property
    def size(self) -> Size:
        """The order of cases: nodes that count, inputs, elements, plainness of the values, length of the script."""
        inside = sum(node.op in COMPUTE for body in bodies_of(self.graph_module).values() for node in body.graph.nodes)
        inputs = len(self.inputs) + len(constants_of(self.graph_module))
        tensors = [
            (self.fill_of(place), value) for place, value in enumerate(self.inputs) if isinstance(value, torch.Tensor)
        ]
        tensors += [(DATA, value) for value in constants_of(self.graph_module).values()]
        values = sum(fill.rank + (not plain_dtype(value.dtype)) + 1 for fill, value in tensors)
        return self.compute_nodes + inside, inputs, self.elements, values, len(self.key)

    @functools.cached_property
    def key(self) -> str:
        """What tells a part from others: its code, its bodies' code, what its inputs look like, its setting.

        Values that were recorded are not in it: the code and the names of its inputs determine them.
        """
        bodies = [module.code for module in self.graph_module.modules() if isinstance(module, GraphModule)]
        inputs = [
            f"{self.fill_of(place).name} {value.dtype} {tuple(value.shape)} {value.stride()}{wants(value)}"
            if isinstance(value, torch.Tensor)
            else repr(value)
            for place, value in enumerate(self.inputs)
        ]
        return "\n".join([*bodies, *inputs, setting_text(self.setting) if self.setting is not None else ""])


def wants(value: torch.Tensor) -> str:
    """Say whether an input wants a gradient."""
    return " gradient" if value.requires_grad else ""


def setting_text(request: Request) -> str:
    """Return how a graph is compiled and run as text; its length tells how much there is to it."""
    run = [name for name in ("no_grad", "inference_mode") if getattr(request, name)]
    run += ["backward"] if request.gradients else []
    return f"{recipe_plain(request).to_source()}{' '.join(run)}{request.autocast or ''}"


def bodies_of(graph_module: GraphModule) -> dict[str, GraphModule]:
    """Return the graph modules that a graph's operators are given, by path."""
    used = {str(node.target).split(".")[0] for node in graph_module.graph.nodes if node.op == "get_attr"}
    return {
        name: module
        for name, module in graph_module.named_modules()
        if isinstance(module, GraphModule) and name and name.split(".")[0] in used
    }


def constants_of(graph_module: GraphModule) -> dict[str, torch.Tensor]:
    """Return the tensors that a graph itself holds and uses, by path."""
    found = {}
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            value: Any = graph_module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            if isinstance(value, torch.Tensor):
                found[str(node.target)] = value
    return found


def placeholders(graph_module: GraphModule) -> list[Node]:
    """Return the nodes of a graph's inputs, in order."""
    return [node for node in graph_module.graph.nodes if node.op == "placeholder"]


def with_shapes(graph_module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """Return a graph that tells the shapes of its inputs."""
    for node, value in zip(placeholders(graph_module), inputs, strict=True):
        node.meta = {name: entry for name, entry in node.meta.items() if name not in ("val", "example_value")}
        if isinstance(value, torch.Tensor):
            node.meta["val"] = value.detach().to("meta")
    return graph_module
