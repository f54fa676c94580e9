"""Parts of a graph as graphs: some nodes, all of them apart, in stretches, with every value or gradient shown."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity.graphs.build import Build
from torchparity.graphs.part import Part, placeholders
from torchparity.graphs.recording import Recording, copied_together, reached
from torchparity.repro.fills import Fill
from torchparity.repro.names import input_names, operation_name
from torchparity.repro.opening import Opened
from torchparity.request import Request

# What libraries compute. A kernel ends before it, so that among others it makes many small kernels of a large one.
LIBRARY = re.compile(r"mm_?$|mv$|matmul$|einsum$|linear$|conv(?!ert)|attention")


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Operations side by side: the nodes of the results, whose value each input is and who uses it, in order.

    `owners` tells the operation that a leaf of the run belongs to: an output, or the gradient of an input.
    """

    part: Part
    results: list[Node]
    uses: list[tuple[Node, Node]]
    owners: dict[str, Node]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Stretches of a graph side by side, none fed by another; `owners` tells the nodes that a leaf belongs to."""

    part: Part
    owners: dict[str, list[Node]]


@dataclass(frozen=True, kw_only=True)
class Tapped:
    """A graph whose intermediate values are outputs: those of nodes, then values again, after who wrote to them."""

    part: Part
    nodes: list[Node]
    rewrites: list[tuple[Node, Node]]

    @property
    def makers(self) -> list[Node]:
        """Return for each output the node that made it what it is."""
        return [*self.nodes, *(writer for _, writer in self.rewrites)]


@dataclass(frozen=True, kw_only=True)
class GradientsTapped:
    """A graph that tells the gradient of every value: whose it is, by the name of the leaf that shows it."""

    part: Part
    owners: dict[str, Node]

    def where_it_begins(self, wrong: Iterable[str]) -> list[Node]:
        """Return the operations between the last value whose gradient is wrong and those whose gradients are right."""
        nodes = [self.owners[path] for path in wrong if path in self.owners and self.owners[path].users]
        if not nodes:
            return []
        shown = set(self.owners.values())
        order = {node: place for place, node in enumerate(nodes[0].graph.nodes)}
        last = max(nodes, key=lambda node: min(order[user] for user in node.users))
        behind = reached([last], lambda node: node.users if node is last or node not in shown else ())
        return sorted((node for node in behind if node.op != "output"), key=lambda node: order[node])


class Extractor:
    """Makes parts of one graph."""

    def __init__(
        self,
        graph_module: GraphModule,
        inputs: Sequence[Any],
        *,
        gradients: bool = False,
        fills: Sequence[Fill] = (),
        setting: Request | None = None,
        around: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self.graph_module = graph_module
        self.inputs = list(inputs)
        self.setting = setting
        self.fills = dict(zip(placeholders(graph_module), fills, strict=True)) if fills else {}
        self.recording = Recording(graph_module, self.inputs, gradients=gradients, around=around)
        nodes = list(graph_module.graph.nodes)
        reached = self.recording.results.keys() | {self.recording.raised}
        self.compute = [node for node in nodes if node in reached and self.recording.is_compute(node)]
        self.output = nodes[-1]
        self.given = dict(zip(placeholders(graph_module), self.inputs, strict=True))

    def whole(self) -> Part:
        """Return the graph as it is."""
        nodes = sum(self.recording.is_compute(node) for node in self.graph_module.graph.nodes)
        return Part(self.graph_module, copied_together(self.inputs), nodes, tuple(self.fills.values()), self.setting)

    def tapped(self, untapped: Container[Node] = ()) -> Tapped:
        """Return the whole graph with every tensor that it computes as an output.

        Nodes may be left untapped; the graph's own outputs never are.
        """
        build = Build(self, set(self.compute), bypass=True, only_sinks=False, untapped=untapped)
        part = build.part(tap=True)
        return Tapped(part=part, nodes=build.shown, rewrites=list(build.rewrites))

    def apart(self, nodes: Iterable[Node] | None = None) -> Apart:
        """Return operations (every distinct one, once), each with the inputs it really had, none fed by another.

        a -> b -> a' -> b', where a' is like a but for its values: (a(x), b(y)). What libraries compute comes last.
        """
        chosen = self.distinct() if nodes is None else nodes
        keep = sorted(chosen, key=lambda node: LIBRARY.search(operation_name(node)) is not None)
        build = Build(self, set(keep), bypass=False, only_sinks=False, groups=[[node] for node in keep])
        part = build.part(tap=True)
        owners = {f"output[{place}]": self._owner(node) for place, node in enumerate(build.shown)}
        names = input_names(part.graph_module)
        uses = [(node, keep[group]) for node, _, group in build.given if group is not None]
        owners |= {f"grad.{names[made]}": user for (_, user), made in zip(uses, build.given.values(), strict=True)}
        return Apart(part=part, results=build.shown, uses=uses, owners=owners)

    def distinct(self) -> list[Node]:
        """Return one operation of each that are alike but for their values."""
        alike: dict[Any, Node] = {}
        for node in self.compute:
            if node in self.recording.results:
                alike.setdefault(self._look(node), node)
        return list(alike.values())

    def windows(self, size: int, *, offset: int = 0) -> Windows:
        """Return the whole graph cut into stretches of so many operations, each with the inputs that it really had.

        a -> b -> c -> d, cut by two: (b(a(x)), d(c(y))). Inside a stretch everything is as it was.
        """
        cuts = sorted({0, *range(offset % size, len(self.compute), size), len(self.compute)})
        groups = [self.compute[low:high] for low, high in itertools.pairwise(cuts)]
        build = Build(self, set(self.compute), bypass=False, only_sinks=True, groups=groups)
        part = build.part()
        owners = {f"output[{place}]": groups[build.group_of(node)] for place, node in enumerate(build.shown)}
        names = input_names(part.graph_module)
        owners |= {
            f"grad.{names[made]}": groups[group] for (_, _, group), made in build.given.items() if group is not None
        }
        return Windows(part=part, owners=owners)

    def gradients_tapped(self) -> GradientsTapped:
        """Return the whole graph with zeros added to its differentiable values: their gradients are what reaches these.

        y = f(x)  ->  y = f(x) + z. Views are left alone, because a sum is no view.
        """
        build = Build(self, set(self.compute), bypass=True, only_sinks=False, zeros=True)
        part = build.part()
        names = input_names(part.graph_module)
        shown = [(made, node) for (node, _, _), made in build.given.items()]
        shown += [(zero, node) for node, zero in build.zeros.items()]
        return GradientsTapped(part=part, owners={f"grad.{names[made]}": node for made, node in shown})

    def _look(self, node: Node) -> Any:
        """Return what an operation is told by, its values apart."""

        def look(argument: Node) -> str:
            value = self.recording.seen[(argument, node)]
            if isinstance(value, torch.Tensor):
                return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad}"
            return str(argument.target) if argument.op == "get_attr" else repr(value)

        arguments = torch.fx.node.map_arg((node.args, node.kwargs), look)
        return node.op, str(node.target), repr(arguments)

    def _owner(self, node: Node) -> Node:
        return node.all_input_nodes[0] if self.recording.is_pick(node) else node

    def part(
        self, keep: Iterable[Node], *, bypass: bool = True, only_sinks: bool = False, silent: bool = False
    ) -> Part:
        """Return the graph of the kept nodes; its outputs were outputs, or are used by nobody that is left.

        With `silent`, what only writes to an input is no output.
        """
        return Build(self, set(keep), bypass=bypass, only_sinks=only_sinks, silent=silent).part()


def opened_graph(opened: Opened) -> Extractor:
    """Return what makes parts of the graph of a case: run once here, under the conditions of its capture."""
    case = opened.case
    model, inputs, random = opened.make()
    return Extractor(
        opened.graph(model),
        inputs,
        gradients=case.request.differentiates,
        setting=case.request,
        around=opened.conditions(random),
    )
