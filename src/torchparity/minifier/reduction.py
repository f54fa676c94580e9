"""Reduce any graph under any predicate: one gate, one order, plain passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from torchparity.errors import UsageError
from torchparity.minifier.bodies import reduce_bodies
from torchparity.minifier.extract import Extractor, Part
from torchparity.minifier.search import needed

Predicate = Callable[[GraphModule, list[Any]], bool]
Suspects = Callable[[Extractor], Iterable[Sequence[Node]]]


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The smallest failing graph that was found, its inputs, and what finding it took."""

    graph_module: GraphModule
    inputs: list[Any]
    queries: int
    compute_nodes: int


@dataclass
class Gate:
    """The only place where the current graph is replaced: asks, remembers, counts, and adopts what is smaller."""

    predicate: Predicate
    best: Part | None = None
    queries: int = 0
    _answers: dict[str, bool] = field(default_factory=dict)

    def fails(self, part: Part) -> bool:
        """Ask whether a part fails, once; adopt it where it does and is smaller than the best so far."""
        key = part.key
        if key not in self._answers:
            self.queries += 1
            fresh = part.fresh()
            self._answers[key] = bool(self.predicate(fresh.graph_module, list(fresh.inputs)))
        failed = self._answers[key]
        if failed and (self.best is None or part.size < self.best.size):
            self.best = part
        return failed


def reduce_graph(
    graph_module: GraphModule,
    inputs: Sequence[Any],
    *,
    fails: Predicate,
    suspects: Suspects | None = None,
    gradients: bool = False,
) -> Reduced:
    """Return the smallest graph found that still fails, with its inputs.

    `fails(graph_module, inputs)` is asked about graphs of fewer and fewer nodes; it may compile, run, compare, or only
    look at the graph. It gets copies, and may change them. `suspects` names small sets of nodes to try first.
    `gradients` keeps the values that become inputs differentiable.
    """
    extractor = Extractor(graph_module, inputs, gradients=gradients)
    gate = Gate(fails)
    if not gate.fails(extractor.whole()):
        raise UsageError("the graph does not fail as it is", hint="`fails` must return True for the graph to reduce")
    kept = jump(extractor, gate, suspects) or keep_needed(extractor, gate)
    drop_outputs(extractor, gate, kept)
    reduce_bodies(gate)
    best = gate.best
    assert best is not None
    return Reduced(
        graph_module=best.graph_module,
        inputs=list(best.inputs),
        queries=gate.queries,
        compute_nodes=best.compute_nodes,
    )


def jump(extractor: Extractor, gate: Gate, suspects: Suspects | None) -> list[Node]:
    """Try small neighbourhoods of the suspects before any search. One query each."""
    for nodes in suspects(extractor) if suspects is not None else ():
        if gate.fails(extractor.part(nodes)):
            return again_without(extractor, gate, list(nodes)) if len(nodes) > 1 else list(nodes)
    return []


def keep_needed(extractor: Extractor, gate: Gate) -> list[Node]:
    """Leave out every node that the failure does not need.

    a -> b -> c -> d, where b and d are needed: b(x) -> d. About 2 k log2(n / k) queries for k needed nodes.
    """
    compute = extractor.compute
    if not gate.fails(extractor.part(compute)):
        return compute
    kept = needed(compute, lambda nodes: gate.fails(extractor.part(nodes)))
    return again_without(extractor, gate, kept)


def again_without(extractor: Extractor, gate: Gate, kept: list[Node]) -> list[Node]:
    """Leave out one node at a time, bypassed or with its value as an input. At most two queries each."""
    for node in list(kept):
        rest = [other for other in kept if other is not node]
        if rest and any(gate.fails(extractor.part(rest, bypass=bypass)) for bypass in (True, False)):
            kept = rest
    return kept


def drop_outputs(extractor: Extractor, gate: Gate, kept: list[Node]) -> None:
    """Return only what nobody else uses: (a, b(a)) -> (b(a),). One query."""
    gate.fails(extractor.part(kept, only_sinks=True))
