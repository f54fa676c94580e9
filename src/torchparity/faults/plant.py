"""Plant one fault at one site of the forward or the backward graph of whatever is compiled."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.errors import UsageError
from torchparity.faults.kinds import ANY, KINDS, Fault
from torchparity.torchapi import OpOverload

PLACES = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place where a fault can stand: the n-th graph's node, and its operation."""

    graph: int
    node: str
    operation: str


class Planted:
    """A torch.compile backend that is aot_eager but for one fault.

    After compiling, `planted` is the site that got the fault (None: there are fewer sites), and
    `sites` are all sites of this kind that were met.
    """

    def __init__(self, fault: Fault, *, where: str, site: int | None, size: float) -> None:
        self.fault = fault
        self.where = where
        self.site = site
        self.size = size
        self.sites: list[Site] = []
        self.planted: Site | None = None
        self.graphs: dict[str, int] = {}
        self._next = 0
        self.__name__ = f"plant({fault.name!r}, where={where!r}, site={site})"
        self._backend = torchapi.aot_backend(forward=self._compiler("forward"), backward=self._compiler("backward"))

    def __repr__(self) -> str:
        return self.__name__

    def to_source(self) -> tuple[list[str], str]:
        """Return the import and the expression that make this backend again."""
        call = f"plant({self.fault.name!r}, where={self.where!r}, site={self.site}, size={self.size!r})"
        return ["import torchparity.faults"], f"torchparity.faults.{call}"

    def alone(self, direction: str) -> Planted:
        """Return the backend for a forward or backward graph that is compiled by itself, as a forward one."""
        site = self.site if direction == self.where else None
        return Planted(self.fault, where="forward", site=site, size=self.size)

    def __call__(self, graph_module: GraphModule, inputs: list[Any], **options: Any) -> Any:
        """Compile as torch.compile asks a backend to."""
        return self._backend(graph_module, inputs)

    def _compiler(self, place: str) -> Callable[[GraphModule, list[Any]], Any]:
        def compile_graph(graph_module: GraphModule, inputs: list[Any]) -> Any:
            if place == self.where:
                # A graph that is compiled again has its sites, and its fault, where it had them.
                self._next = self.graphs.setdefault(graph_module.code, len(self.sites))
                self._plant(graph_module)
            return torchapi.boxed(graph_module.forward)

        return compile_graph

    def _plant(self, graph_module: GraphModule) -> None:
        if self.fault.place == "compile":
            if self._take("", "compile"):
                self.fault.corrupt()
        elif self.fault.place == "operation":
            for node in graph_module.graph.nodes:
                if eligible(self.fault, node) and self._take(node.name, str(node.target)):
                    node.target = corrupted(node.target, self.fault, self.size)
        else:
            self._plant_output(graph_module)
        graph_module.recompile()

    def _take(self, node: str, operation: str) -> bool:
        """Count a site, and tell whether it is the one."""
        number, self._next = self._next, self._next + 1
        if number == len(self.sites):
            self.sites.append(Site(graph=len(self.graphs) - 1, node=node, operation=operation))
        if number == self.site:
            self.planted = self.sites[number]
        return number == self.site

    def _plant_output(self, graph_module: GraphModule) -> None:
        graph = graph_module.graph
        output = next(node for node in graph.nodes if node.op == "output")
        results = list(output.args[0])
        mutated = torchapi.mutated_inputs() if self.where == "forward" else []
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        inputs = dict(enumerate(mutated)) if self.fault.place == "mutation" else {}
        first = 0 if inputs else len(mutated)
        count = torchapi.visible_outputs(len(results)) if self.where == "forward" else len(results)
        for index in range(first, len(mutated) if inputs else count):
            result = results[index]
            if not isinstance(result, Node) or not is_tensor(result, integers=None if inputs else False):
                continue
            if self.fault.place == "mutation" and index not in inputs:
                continue
            if self._take(result.name, f"output {index}"):
                with graph.inserting_before(output):
                    extra = placeholders[inputs[index]] if inputs else self.size
                    results[index] = graph.call_function(self.fault.corrupt, (result, extra))
        output.args = (tuple(results),)


def plant(kind: str, *, where: str = "forward", site: int | None = 0, size: float | None = None) -> Planted:
    """Return a torch.compile backend with one fault: `site` counts the places where it could stand.

    `site=None` plants nothing and only counts.
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        raise UsageError(
            f"there is no fault named {kind!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"known are {', '.join(KINDS)}",
        )
    if where not in PLACES:
        raise UsageError(f"a fault cannot stand in {where!r}", hint="use 'forward' or 'backward'")
    fault = KINDS[kind]
    return Planted(fault, where=where, site=site, size=fault.size if size is None else size)


def corrupted(operation: Any, fault: Fault, size: float) -> Callable[..., Any]:
    """Return an operation that does what the fault does to it."""

    def planted(*args: Any, **kwargs: Any) -> Any:
        return fault.corrupt(operation, args, kwargs, size)

    planted.__name__ = f"{fault.name}_{getattr(operation, '__name__', 'operation').replace('.', '_')}"
    return planted


def eligible(fault: Fault, node: Node) -> bool:
    """Tell whether a fault of this kind makes sense at a node."""
    operation = node.target
    if node.op != "call_function" or not isinstance(operation, OpOverload):
        return False
    name = torchapi.target_name(operation)
    if fault.operations != ANY:
        return name in fault.operations and is_tensor(node, integers=fault.integers)
    if operation.is_view or torchapi.is_random(operation) or not node.all_input_nodes:
        return False
    if name in ("copy_", "empty_like", "zeros_like", "ones_like", "full_like", "detach", "alias"):
        return False
    return is_tensor(node, integers=fault.integers)


def is_tensor(node: Node, *, integers: bool | None) -> bool:
    """Tell whether a node's (first) result is a float tensor, an integer one, or (None) any."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if not isinstance(value, torch.Tensor):
        return False
    return integers is None or value.is_floating_point() != integers
