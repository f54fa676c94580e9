"""Which wrong operation leads to the failure: its value alone, put into an eager run, makes the outputs wrong.

Two operations may both be wrong, and only one of them reach an output. The run that tells is the counterfactual: eager
everywhere, but for what the candidate gave at one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchparity.graphs.extract import Extractor
from torchparity.graphs.recording import copied, copied_together

# An output that moves by this share of what it is wrong by was led there.
SHARE = 0.1
# So many wrong operations are tried.
TRIED = 24


class Injecting(Interpreter):
    """Runs a graph eagerly, with another value in the place of one operation's."""

    def __init__(self, graph_module: GraphModule, place: Node | None = None, value: Any = None) -> None:
        super().__init__(graph_module)
        self.place, self.value = place, value

    def run_node(self, node: Node) -> Any:
        """Run one node, or hand out what is to stand in its place."""
        result = super().run_node(node)
        return copied(self.value) if node is self.place else result


def leading(extractor: Extractor, values: dict[Node, Any], wrong: Sequence[Node]) -> dict[Node, bool]:
    """Tell of each wrong operation whether its value alone makes an output wrong that the candidate has wrong.

    Empty where nobody can tell: no output is wrong in its values, or the graph does not run so.
    """
    outputs = [node for node in extractor.output.all_input_nodes if isinstance(values.get(node), torch.Tensor)]
    try:
        right = results_of(extractor, outputs)
        failing = {node: distance(values[node], right[node]) for node in outputs if node in right}
        failing = {node: apart for node, apart in failing.items() if apart > 0}
        if not failing:
            return {}
        found = {}
        for node in list(wrong)[:TRIED]:
            moved = results_of(extractor, outputs, node, values[node])
            found[node] = any(distance(moved[it], right[it]) >= SHARE * apart for it, apart in failing.items())
        return found
    except Exception:  # noqa: BLE001 - a graph that does not run alone tells nothing
        return {}


def results_of(extractor: Extractor, outputs: Sequence[Node], place: Node | None = None, value: Any = None) -> Any:
    """Return what an eager run gives at some nodes, one value injected."""
    graph_module = extractor.graph_module
    inputs = copied_together(tuple(extractor.inputs))
    interpreter = Injecting(graph_module, place, value)
    interpreter.garbage_collect_values = False
    with torch.no_grad():
        interpreter.run(*inputs)
    return {node: interpreter.env[node] for node in outputs if node in interpreter.env}


def distance(left: Any, right: Any) -> float:
    """Return how far two results lie apart; infinitely, where they cannot be compared or one is not finite."""
    if not isinstance(right, torch.Tensor) or left.shape != right.shape:
        return float("inf")
    if left.numel() == 0:
        return 0.0
    apart = (left.detach().double() - right.detach().double()).abs()
    alike = (left == right) | (left.isnan() & right.isnan())
    return float(torch.nan_to_num(apart.masked_fill(alike, 0.0), nan=float("inf")).max())
