"""What every node of a graph computed, so that any of them can become an input with the value it really had."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchparity import torchapi

COMPUTE = ("call_function", "call_method", "call_module")


class Recording(Interpreter):
    """Runs a graph once and keeps the value of every node, as each of its users saw it.

    An in-place operation changes a value between two uses, so values are kept by version.
    """

    def __init__(self, graph_module: GraphModule, inputs: list[Any], *, gradients: bool = False) -> None:
        super().__init__(graph_module)
        self.seen: dict[tuple[Node, Node], Any] = {}
        self.results: dict[Node, Any] = {}
        self._kept: dict[tuple[Node, int], Any] = {}
        with torch.set_grad_enabled(gradients):
            self.run(*[copied(value) for value in inputs], enable_io_processing=False)
        self._kept.clear()

    def is_pick(self, node: Node) -> bool:
        """Tell whether a node only takes one of several results of another node."""
        named = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
        return named and isinstance(node.args[0], Node) and isinstance(self.results[node.args[0]], tuple | list)

    def is_compute(self, node: Node) -> bool:
        """Tell whether a node counts."""
        return node.op in COMPUTE and not self.is_pick(node)

    def run_node(self, n: Node) -> Any:
        """Keep what the node's arguments are now, run it, and keep what it gives."""
        for argument in n.all_input_nodes:
            self.seen[(argument, n)] = self._value(argument)
        result = super().run_node(n)
        self.results[n] = copied(result)
        return result

    def _value(self, node: Node) -> Any:
        value = self.env[node]
        version = sum(leaf._version for leaf in torchapi.tree_leaves(value) if isinstance(leaf, torch.Tensor))
        if (node, version) not in self._kept:
            self._kept[(node, version)] = copied(value)
        return self._kept[(node, version)]


def copied(value: Any) -> Any:
    """Return a value with fresh tensors in it, strides and gradient flags kept."""
    return torchapi.tree_map(_copied_leaf, value)


def _copied_leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
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
