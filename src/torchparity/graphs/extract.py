"""A part of a graph as a graph: keep some nodes, and put something else where the others stood.

A node that is left out is

    bypassed       where one of its arguments is alike and leads to a kept node:   b = f(a); c = g(b)  ->  c = g(a)
    an input       where none is, with the value that its user saw
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchparity.graphs.part import Part, Setting, placeholders
from torchparity.graphs.recording import Recording, alike, copied_together, has_storage, reached
from torchparity.repro.fills import DATA, Fill
from torchparity.repro.source import input_names
from torchparity.repro.values import literal


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
        setting: Setting | None = None,
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
        build = _Build(self, set(self.compute), bypass=True, only_sinks=False, untapped=untapped)
        part = build.part(tap=True)
        return Tapped(part=part, nodes=build.shown, rewrites=list(build.rewrites))

    def apart(self, nodes: Iterable[Node] | None = None) -> Apart:
        """Return operations (every distinct one, once), each with the inputs it really had, none fed by another.

        a -> b -> a' -> b', where a' is like a but for its values: (a(x), b(y)).
        """
        alike: dict[Any, Node] = {}
        for node in self.compute if nodes is None else ():
            if node in self.recording.results:
                alike.setdefault(self._look(node), node)
        keep = list(alike.values() if nodes is None else nodes)
        build = _Build(self, set(keep), bypass=False, only_sinks=False, groups=[[node] for node in keep])
        part = build.part(tap=True)
        owners = {f"output[{place}]": self._owner(node) for place, node in enumerate(build.shown)}
        names = input_names(part.graph_module)
        uses = [(node, keep[group]) for node, _, group in build.given if group is not None]
        owners |= {f"grad.{names[made]}": user for (_, user), made in zip(uses, build.given.values(), strict=True)}
        return Apart(part=part, results=build.shown, uses=uses, owners=owners)

    def windows(self, size: int, *, offset: int = 0) -> Windows:
        """Return the whole graph cut into stretches of so many operations, each with the inputs that it really had.

        a -> b -> c -> d, cut by two: (b(a(x)), d(c(y))). Inside a stretch everything is as it was.
        """
        cuts = sorted({0, *range(offset % size, len(self.compute), size), len(self.compute)})
        groups = [self.compute[low:high] for low, high in itertools.pairwise(cuts)]
        build = _Build(self, set(self.compute), bypass=False, only_sinks=True, groups=groups)
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
        build = _Build(self, set(self.compute), bypass=True, only_sinks=False, zeros=True)
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

    def part(self, keep: Iterable[Node], *, bypass: bool = True, only_sinks: bool = False) -> Part:
        """Return the graph of the kept nodes; its outputs were outputs, or are used by nobody that is left."""
        return _Build(self, set(keep), bypass=bypass, only_sinks=only_sinks).part()


class _Build:
    """One part in the making."""

    def __init__(
        self,
        extractor: Extractor,
        keep: set[Node],
        *,
        bypass: bool,
        only_sinks: bool,
        groups: Sequence[Sequence[Node]] = (),
        zeros: bool = False,
        untapped: Container[Node] = (),
    ) -> None:
        self.extractor = extractor
        self.recording = extractor.recording
        self.keep = keep
        self.bypass = bypass
        self.only_sinks = only_sinks
        # Where there are groups, each has inputs of its own, and gets nothing that another one computes.
        self.groups = {node: number for number, group in enumerate(groups) for node in group}
        # Whether zeros are added to what has a gradient, and these.
        self.adds_zeros = zeros
        self.zeros: dict[Node, Node] = {}
        self.untapped = untapped
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self.given: dict[tuple[Node, int, int | None], Node] = {}
        # For what was made, the value whose memory it lies in, and who has written to that.
        self.roots: dict[Node, Node] = {}
        self.touched: dict[Node, set[Node]] = {}
        self.values: list[Any] = []
        self.fills: list[Fill] = []
        self.used: set[Node] = set()
        self.origins: dict[Node, Node] = {}
        # The kept nodes that a kept node depends on, itself included, as bits.
        self.depends: dict[Node, int] = {}
        self.top: Node | None = None
        # The nodes whose values are outputs.
        self.shown: list[Node] = []
        # Copies of values that are written to later on.
        self.taps: dict[Node, Node] = {}
        # Copies of values as they are after somebody wrote to them.
        self.rewrites: dict[tuple[Node, Node], Node] = {}

    def part(self, *, tap: bool = False) -> Part:
        """Copy the kept nodes in order, and return what came of it."""
        for node in self.extractor.graph_module.graph.nodes:
            if node in self.keep or (node.args and node.args[0] in self.made and self.recording.is_pick(node)):
                self.made[node] = self._copy(node)
                if tap and not self.groups:
                    self._tap_rewrites(node)
                if self.adds_zeros and self._has_gradient(node):
                    self._add_zero(node)
        wanted = [node for node in self.extractor.output.all_input_nodes if node in self.made and not self.only_sinks]
        shows = [node for node in self.made if node not in wanted and self._is_result(node) and node.op != "get_attr"]
        sinks = [node for node in shows if node not in self.used or self._is_rewritten(node)]
        self.shown = [node for node in self.made if self._is_tapped(node)] if tap else [*wanted, *sinks]
        results = [self.taps.get(node, self.made[node]) for node in self.shown]
        self.graph.output((*results, *self.rewrites.values()))
        made = GraphModule(self.extractor.graph_module, self.graph)
        fills = tuple(self.fills) if self.extractor.fills else ()
        return Part(made, copied_together(self.values), len(self.keep), fills, self.extractor.setting)

    def _has_gradient(self, node: Node) -> bool:
        """Tell whether a value of its own has a gradient."""
        value = self.recording.results.get(node)
        views = self.recording.views
        own = (node.args[0] if self.recording.is_pick(node) else node) not in views
        return own and isinstance(value, torch.Tensor) and value.requires_grad and has_storage(value)

    def _add_zero(self, node: Node) -> None:
        """Let everybody see a value plus an input that is zero."""
        zero = self._at_top(lambda: self.graph.placeholder(f"zero_{node.name}"))
        # Minus zero, which leaves a minus zero as it is.
        self.values.append(torch.full_like(self.recording.results[node], -0.0).requires_grad_())
        self.fills.append(DATA)
        with self.graph.inserting_after(self.made[node]):
            total = self.graph.call_function(torch.add, (self.made[node], zero))
        self.origins[total] = node
        self.made[node], self.zeros[node] = total, zero

    def _tap_rewrites(self, node: Node) -> None:
        """Copy a value that will be written to, and those that the node has written to."""
        if node in self.recording.overwritten and isinstance(self.recording.results.get(node), torch.Tensor):
            self.taps[node] = self.graph.call_function(torch.clone, (self.made[node],))
        for value in self.recording.written_by(node) if node not in self.untapped else ():
            standing = self._standing(value)
            is_tensor = isinstance(self.recording.results.get(value), torch.Tensor)
            if standing is not None and is_tensor and value is not node and value not in self.untapped:
                self.rewrites[value, node] = self.graph.call_function(torch.clone, (standing,))

    def _is_rewritten(self, node: Node) -> bool:
        """Tell whether somebody who was left out saw what an in-place operation had made of a node's value."""
        return any((node, user) in self.recording.rewritten for user in node.users if user not in self.made)

    def _is_tapped(self, node: Node) -> bool:
        value = self.recording.results.get(node)
        own = node in self.extractor.output.all_input_nodes
        return isinstance(value, torch.Tensor) and (own or (node not in self.untapped and node.op != "get_attr"))

    def _is_result(self, node: Node) -> bool:
        return not isinstance(self.recording.results.get(node), tuple | list)

    def _copy(self, node: Node) -> Node:
        """Copy a node; its arguments become what stands for them."""
        arguments = {argument: self._stand_in(argument, node) for argument in node.all_input_nodes}
        made = self.graph.node_copy(node, lambda argument: arguments[argument])
        self._note_memory(node, made, arguments)
        self.depends[node] = 1 << len(self.depends)
        for argument in made.all_input_nodes:
            origin = self.origins.get(argument)
            if origin is not None:
                self.used.add(origin)
                self.depends[node] |= self.depends[origin]
        self.origins[made] = node
        return made

    def _note_memory(self, node: Node, made: Node, arguments: dict[Node, Any]) -> None:
        """Note whose memory a copy of a node shares, and to whose it writes."""
        viewed = arguments.get(self.recording.views.get(node, node))
        if isinstance(viewed, Node):
            self.roots[made] = self.roots.get(viewed, viewed)
        for argument, given in arguments.items():
            if isinstance(given, Node) and (argument, node) in self.recording.writes:
                self.touched.setdefault(self.roots.get(given, given), set()).add(node)

    def _stand_in(self, node: Node, user: Node) -> Any:
        """Return what a user of a node gets in its place."""
        if node in self.made and (node.op == "get_attr" or self.group_of(node) == self.group_of(user)):
            return self.made[node]
        if node.op == "get_attr":
            self.made[node] = self._at_top(lambda: self.graph.node_copy(node))
            return self.made[node]
        if node.op != "placeholder" and self.bypass:
            found = self._behind(node)
            if found is not None:
                return self.made[found]
        written = self._standing(node, self.group_of(user))
        if written is not None and self.recording.writers.get((node, user)) in self._touching(written):
            return written
        value = self.recording.seen[(node, user)]
        if node.op == "placeholder" and (node, user) in self.recording.pristine:
            value = self.extractor.given[node]  # As it came, with the memory that it shares.
        if not isinstance(value, torch.Tensor) and literal(value) is not None and node.op != "placeholder":
            return value
        key = (node, id(value), self.group_of(user) if self.groups else None)
        if key not in self.given:
            # A value that changed between two uses is two inputs.
            number = sum(given is node for given, _, _ in self.given)
            name = f"{node.name}_version_{number}" if number else node.name
            self.given[key] = self._at_top(lambda: self.graph.placeholder(name))
            self.given[key].meta = dict(node.meta)
            self.given[key].target = self.given[key].name  # Another input's name may be this one's wish.
            # A value that was computed may be written to in place; an input that has a gradient may not.
            written_to = node.op != "placeholder" and self.recording.overwritten.get(node, set()) & self.keep
            self.values.append(value.detach() if written_to and isinstance(value, torch.Tensor) else value)
            pristine = node.op == "placeholder" and (node, user) in self.recording.pristine
            self.fills.append(self.extractor.fills.get(node, DATA) if pristine else DATA)
        return self.given[key]

    def group_of(self, node: Node) -> int:
        """Return the group that a node is in; what takes one of several results is where these are made."""
        maker = node.args[0] if self.recording.is_pick(node) else node
        return self.groups.get(maker, -1) if isinstance(maker, Node) else -1

    def _standing(self, node: Node, group: int = -1) -> Node | None:
        """Return what stands for a node by now (in a group, where there are groups), where something does."""
        if node in self.made and (not self.groups or self.group_of(node) == group):
            return self.made[node]
        wanted = group if self.groups else None
        given = [made for (entry, _, owner), made in self.given.items() if entry is node and owner == wanted]
        return given[-1] if given else None

    def _touching(self, made: Node) -> set[Node]:
        """Return who has written to the memory of what was made."""
        return self.touched.get(self.roots.get(made, made), set())

    def _behind(self, node: Node) -> Node | None:
        """Return the kept node that a left-out node is bypassed to: the one that most depends on other kept ones."""
        wanted = self.recording.results.get(node)
        level, seen = [node], {node}
        best: Node | None = None
        while level:
            below = []
            for entry in level:
                for argument in entry.all_input_nodes:
                    if argument in seen or not alike(self.recording.results.get(argument), wanted):
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
