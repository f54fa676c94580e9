"""What every node of a graph computed, so that any of them can become an input with the value it really had."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchparity import torchapi

COMPUTE = ("call_function", "call_method", "call_module")


class Recording(Interpreter):
    """Runs a graph once and keeps the value of every node, as each of its users saw it.

    An in-place operation changes a value between two uses, so values are kept by version. A graph that the model
    itself refuses (a compiler may accept it) is known up to the node that `raised`.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        inputs: Sequence[Any],
        *,
        gradients: bool = False,
        around: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        holds = any(node.op in ("get_attr", "call_module") for node in graph_module.graph.nodes)
        module = copy.deepcopy(graph_module) if holds else graph_module  # What it holds may be written to.
        super().__init__(module, graph=graph_module.graph)
        self.seen: dict[tuple[Node, Node], Any] = {}
        self.results: dict[Node, Any] = {}
        # Pairs of a node and its user, where the value was still as it came, and where it had been written to.
        self.pristine: set[tuple[Node, Node]] = set()
        self.rewritten: set[tuple[Node, Node]] = set()
        # Nodes whose value shares memory with one of their arguments, and which one.
        self.views: dict[Node, Node] = {}
        # Pairs of an argument and the node that writes to it; every writer to a value, whatever view it wrote through;
        # who wrote last to a value before a user of it saw it.
        self.writes: set[tuple[Node, Node]] = set()
        self.overwritten: dict[Node, set[Node]] = {}
        self.writers: dict[tuple[Node, Node], Node] = {}
        self._first_version: dict[Node, int] = {}
        self._last_version: dict[Node, int] = {}
        self._last_writer: dict[Node, Node] = {}
        self._storages: dict[Node, set[Any]] = {}
        self.raised: Node | None = None
        self.error: Exception | None = None
        self._kept: dict[tuple[Node, int], Any] = {}
        with torch.set_grad_enabled(gradients), around or contextlib.nullcontext():
            self.run(*copied_together(inputs), enable_io_processing=False)
        self._kept.clear()
        self.env.clear()

    def run(self, *args: Any, **options: Any) -> Any:
        """Run as far as the graph lets itself be run."""
        try:
            return super().run(*args, **options)
        except Exception as error:
            if self.raised is None:
                raise
            self.error = error.with_traceback(None)

    def is_pick(self, node: Node) -> bool:
        """Tell whether a node only takes one of several results of another node."""
        named = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
        return named and isinstance(node.args[0], Node) and isinstance(self.results.get(node.args[0]), tuple | list)

    def is_compute(self, node: Node) -> bool:
        """Tell whether a node counts."""
        return node.op in COMPUTE and not self.is_pick(node)

    def run_node(self, n: Node) -> Any:
        """Keep what the node's arguments are now, run it, and keep what it gives."""
        versions = {argument: version_of(self.env[argument]) for argument in n.all_input_nodes}
        for argument, version in versions.items():
            self.seen[(argument, n)] = self._value(argument, version)
            as_it_came = self._first_version[argument] == version
            (self.pristine if as_it_came else self.rewritten).add((argument, n))
            if argument in self._last_writer:
                self.writers[(argument, n)] = self._last_writer[argument]
        try:
            result = super().run_node(n)
        except Exception:
            self.raised = n
            raise
        self.results[n] = copied(result)
        self._first_version[n] = self._last_version[n] = version_of(result)
        self._storages[n] = storages_of(result)
        shared = [argument for argument in versions if self._storages[argument] & self._storages[n]]
        if shared and n.op in COMPUTE:
            self.views[n] = shared[0]
        written = [argument for argument, version in versions.items() if version_of(self.env[argument]) != version]
        if written:
            self.writes.update((argument, n) for argument in written)
            self._note_written(n)
        return result

    def feeders(self, node: Node) -> set[Node]:
        """Return what a node's value comes from directly: its arguments, and who wrote to them before."""
        arguments = node.all_input_nodes
        return {
            *arguments,
            *(self.writers[argument, node] for argument in arguments if (argument, node) in self.writers),
        }

    def written_by(self, writer: Node) -> list[Node]:
        """Return the values that somebody saw as an in-place operation had left them."""
        return list(dict.fromkeys(value for (value, _), entry in self.writers.items() if entry is writer))

    def _note_written(self, writer: Node) -> None:
        """Note every value that has just been written to: they share memory, also those that nobody uses any more."""
        memory: set[Any] = set()
        for node, value in self.env.items():
            version = version_of(value)
            if version != self._last_version[node]:
                self._last_version[node] = version
                self._last_writer[node] = writer
                memory |= self._storages[node]
        for node, storages in self._storages.items():
            if node is not writer and storages & memory:
                self.overwritten.setdefault(node, set()).add(writer)

    def _value(self, node: Node, version: int) -> Any:
        if (node, version) not in self._kept:
            self._kept[(node, version)] = copied(self.env[node])
        return self._kept[(node, version)]


def reached(nodes: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return everything that can be reached from nodes, step by step."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        for node in step(waiting.pop()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def storages_of(value: Any) -> set[Any]:
    """Return what tells the memory apart that the tensors of a value lie in."""
    tensors = [leaf for leaf in torchapi.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return {torchapi.storage_key(tensor) for tensor in tensors} - {None}


def version_of(value: Any) -> int:
    """Return how often the tensors of a value have been written to."""
    return sum(torchapi.version_of(leaf) for leaf in torchapi.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def copied_together(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return fresh values; tensors that share memory share it again."""
    places = [
        value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) and has_storage(value) else 0
        for value in values
    ]
    storages: dict[int, torch.UntypedStorage] = {}
    made = []
    for place, value in zip(places, values, strict=True):
        if place and (places.count(place) > 1 or value.storage_offset()):
            storage = storages.setdefault(place, value.untyped_storage().clone())
            fresh = torch.empty(0, dtype=value.dtype, device=value.device)
            fresh.set_(storage, value.storage_offset(), value.shape, value.stride())
            made.append(fresh.requires_grad_(value.requires_grad))
        else:
            made.append(copied(value))
    return tuple(made)


def has_storage(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a plain view of memory."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def copied(value: Any) -> Any:
    """Return a value with fresh tensors in it, strides and gradient flags kept."""
    return torchapi.tree_map(_copied_leaf, value)


def _copied_leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not has_storage(value):
        return value.detach().clone().requires_grad_(value.requires_grad)
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
        made = value.detach().clone()
    else:
        made.copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def alike(left: Any, right: Any) -> bool:
    """Tell whether one value can stand where another one stood."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
