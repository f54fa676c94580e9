"""One part of a graph in the making: copies the kept nodes, and finds what stands for those that are left out.

A node that is left out is

    bypassed       where one of its arguments is alike and leads to a kept node:   b = f(a); c = g(b)  ->  c = g(a)
    an input       where none is, with the value that its user saw
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchparity.graphs.part import Part
from torchparity.graphs.recording import alike, copied_together, has_storage
from torchparity.repro.fills import DATA, Fill
from torchparity.repro.values import literal

if TYPE_CHECKING:
    from torchparity.graphs.extract import Extractor


class Build:
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
        silent: bool = False,
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
        # Whether what only writes to an input stays out of the outputs: to be returned may be to be right.
        self.silent = silent
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
        if self.silent:
            sinks = [node for node in sinks if not self._only_writes(node)]
        self.shown = [*wanted, *sinks]
        if tap:
            self.shown = sorted((node for node in self.made if self._is_tapped(node)), key=self.group_of)
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

    def _only_writes(self, node: Node) -> bool:
        """Tell whether nobody ever used what a node gives, and it writes to an input: that shows by itself."""
        inputs = [root for root, writers in self.touched.items() if node in writers and root.op == "placeholder"]
        return not node.users and bool(inputs)

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
