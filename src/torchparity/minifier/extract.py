"""A part of a graph as a graph: keep some nodes, and put something else where the others stood.

A node that is left out is

    bypassed       where one of its arguments is alike and leads to a kept node:   b = f(a); c = g(b)  ->  c = g(a)
    an input       where none is, with the value that its user saw
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchparity.minifier.recording import Recording, alike, copied
from torchparity.repro.values import literal


@dataclass(frozen=True)
class Part:
    """A graph, the inputs it takes, and how many nodes of it count."""

    graph_module: GraphModule
    inputs: tuple[Any, ...]
    compute_nodes: int

    def fresh(self) -> Part:
        """Return a copy that may be changed."""
        return Part(copy.deepcopy(self.graph_module), tuple(copied(value) for value in self.inputs), self.compute_nodes)

    @property
    def elements(self) -> int:
        """How many numbers the inputs hold."""
        return sum(value.numel() for value in self.inputs if isinstance(value, torch.Tensor))

    @property
    def size(self) -> tuple[int, int, int, int, int]:
        """The order of parts: nodes that count, inputs, outputs, elements, length of the code with its bodies."""
        outputs = next(node for node in self.graph_module.graph.nodes if node.op == "output").all_input_nodes
        return self.compute_nodes, len(self.inputs), len(outputs), self.elements, len(self.key)

    @property
    def key(self) -> str:
        """What tells a part from others: its code, its bodies' code and what its inputs look like."""
        bodies = [module.code for module in self.graph_module.modules() if isinstance(module, GraphModule)]
        shapes = [
            f"{value.dtype}{tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            for value in self.inputs
        ]
        return "\n".join([*bodies, *shapes])


class Extractor:
    """Makes parts of one graph."""

    def __init__(self, graph_module: GraphModule, inputs: Iterable[Any], *, gradients: bool = False) -> None:
        self.graph_module = graph_module
        self.inputs = list(inputs)
        self.recording = Recording(graph_module, self.inputs, gradients=gradients)
        nodes = list(graph_module.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.compute = [node for node in nodes if self.recording.is_compute(node)]
        self.output = nodes[-1]

    def whole(self) -> Part:
        """Return the graph as it is."""
        return Part(self.graph_module, tuple(copied(value) for value in self.inputs), len(self.compute))

    def tapped(self) -> tuple[Part, list[Node]]:
        """Return the whole graph with every tensor that it computes as an output, and the nodes of these outputs."""
        part = _Build(self, set(self.compute), bypass=True, only_sinks=False)
        return part.part(tap=True), part.tapped

    def part(self, keep: Iterable[Node], *, bypass: bool = True, only_sinks: bool = False) -> Part:
        """Return the graph of the kept nodes; its outputs are those that were outputs, and those that nobody uses."""
        return _Build(self, set(keep), bypass=bypass, only_sinks=only_sinks).part()


class _Build:
    """One part in the making."""

    def __init__(self, extractor: Extractor, keep: set[Node], *, bypass: bool, only_sinks: bool) -> None:
        self.extractor = extractor
        self.recording = extractor.recording
        self.keep = keep
        self.bypass = bypass
        self.only_sinks = only_sinks
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self.given: dict[tuple[Node, int], Node] = {}
        self.values: list[Any] = []
        self.used: set[Node] = set()
        self.origins: dict[Node, Node] = {}
        # The kept nodes that a kept node depends on, itself included, as bits.
        self.depends: dict[Node, int] = {}
        self.top: Node | None = None
        self.tapped: list[Node] = []

    def part(self, *, tap: bool = False) -> Part:
        """Copy the kept nodes in order, and return what came of it."""
        for node in self.extractor.graph_module.graph.nodes:
            if node in self.keep or (self.recording.is_pick(node) and node.args[0] in self.made):
                self.made[node] = self._copy(node)
        wanted = [node for node in self.extractor.output.all_input_nodes if node in self.made and not self.only_sinks]
        sinks = [node for node in self.made if node not in self.used and node not in wanted and self._is_result(node)]
        self.tapped = [node for node in self.made if isinstance(self.recording.results.get(node), torch.Tensor)]
        results = [self.made[node] for node in (self.tapped if tap else [*wanted, *sinks])]
        self.graph.output(tuple(results))
        made = GraphModule(self.extractor.graph_module, self.graph)
        return Part(made, tuple(copied(value) for value in self.values), len(self.keep))

    def _is_result(self, node: Node) -> bool:
        return not isinstance(self.recording.results[node], tuple | list)

    def _copy(self, node: Node) -> Node:
        """Copy a node; its arguments become what stands for them."""
        arguments = {argument: self._stand_in(argument, node) for argument in node.all_input_nodes}
        made = self.graph.node_copy(node, lambda argument: arguments[argument])
        self.depends[node] = 1 << len(self.depends)
        for argument in made.all_input_nodes:
            origin = self.origins.get(argument)
            if origin is not None:
                self.used.add(origin)
                self.depends[node] |= self.depends[origin]
        self.origins[made] = node
        return made

    def _stand_in(self, node: Node, user: Node) -> Any:
        """Return what a user of a node gets in its place."""
        if node in self.made:
            return self.made[node]
        if node.op == "get_attr":
            self.made[node] = self._at_top(lambda: self.graph.node_copy(node))
            return self.made[node]
        if node.op != "placeholder" and self.bypass:
            found = self._behind(node)
            if found is not None:
                return self.made[found]
        value = self.recording.seen[(node, user)]
        if not isinstance(value, torch.Tensor) and literal(value) is not None and node.op != "placeholder":
            return value
        key = (node, id(value))
        if key not in self.given:
            self.given[key] = self._at_top(lambda: self.graph.placeholder(node.name))
            self.given[key].meta = dict(node.meta)
            self.values.append(value)
        return self.given[key]

    def _behind(self, node: Node) -> Node | None:
        """Return the kept node that a left-out node is bypassed to: the one that most depends on other kept ones."""
        wanted = self.recording.results[node]
        level, seen = [node], {node}
        best: Node | None = None
        while level:
            below = []
            for entry in level:
                for argument in entry.all_input_nodes:
                    if argument in seen or not alike(self.recording.results[argument], wanted):
                        continue
                    seen.add(argument)
                    if argument not in self.depends:
                        below.append(argument)
                    elif best is None or self.depends[argument].bit_count() > self.depends[best].bit_count():
                        best = argument
            level = below
        return best

    def _at_top(self, make: Any) -> Node:
        """Make a node above every other one but the inputs before it."""
        point = self.graph.inserting_before(None) if self.top is None else self.graph.inserting_after(self.top)
        with point:
            self.top = make()
        return self.top
