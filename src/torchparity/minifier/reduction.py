"""Reduce any graph under any predicate: one gate, one order, plain passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from torchparity.errors import UsageError
from torchparity.graphs.extract import Extractor
from torchparity.graphs.part import Part
from torchparity.minifier.bodies import reduce_bodies
from torchparity.minifier.gate import Asker, Direct, Gate, Predicate
from torchparity.minifier.simplify import plainest, simplify
from torchparity.minifier.trials import tried


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Nodes that may be to blame, and who asks whether they fail as they should."""

    nodes: Sequence[Node]
    asker: Asker


# The passes are run again as long as they find something, and no more often than this.
ROUNDS = 5
# So many nodes are left out one by one; more are halved first.
FEW = 5
# About how many questions the passes after the search for nodes take.
PASSES = 10


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The smallest failing graph that was found, its inputs, and what finding it took."""

    graph_module: GraphModule
    inputs: list[Any]
    queries: int
    compute_nodes: int


def reduce_graph(
    graph_module: GraphModule,
    inputs: Sequence[Any],
    *,
    fails: Predicate,
    gradients: bool = False,
) -> Reduced:
    """Return the smallest graph found that still fails, with its inputs.

    `fails(graph_module, inputs)` is asked about graphs of fewer and fewer nodes, then of smaller and plainer inputs; it
    may compile, run, compare, or only look at the graph. It gets copies, and may change them. `gradients` keeps the
    values that become inputs differentiable.
    """
    gate = Gate(Direct(fails))
    reduce_part(gate, Extractor(graph_module, inputs, gradients=gradients))
    best = gate.current
    return Reduced(
        graph_module=best.graph_module,
        inputs=list(best.inputs),
        queries=gate.queries,
        compute_nodes=best.compute_nodes,
    )


def reduce_part(
    gate: Gate,
    extractor: Extractor,
    suspicions: Iterable[Suspicion] = (),
    otherwise: Callable[[], Asker] | None = None,
) -> None:
    """Run every pass until none of them finds anything; without a suspect, `otherwise` asks about the whole."""
    gate.asker.expect("nodes", 2 * len(extractor.compute).bit_length() + PASSES)
    kept = jump(extractor, gate, suspicions)
    if not kept:
        if otherwise is not None:
            gate.follow(otherwise())
        if not gate.fails(extractor.whole()):
            hint = "`fails` must return True for the graph to reduce"
            raise UsageError("the graph does not fail as it is", hint=hint)
        kept = keep_needed(extractor, gate)
    drop_outputs(extractor, gate, kept)
    polish(gate)


def polish(gate: Gate) -> None:
    """Make what is left plain, as long as that finds anything."""
    for _ in range(ROUNDS):
        before = gate.current.key
        reduce_bodies(gate)
        simplify(gate)
        if gate.current.key == before:
            break
        gate.asker.likely(gate.current)  # The next round mostly finds nothing.
        fewer_nodes(gate)


def jump(extractor: Extractor, gate: Gate, suspicions: Iterable[Suspicion]) -> list[Node]:
    """Try small neighbourhoods of the suspects before any search. One query each, and one ahead for a single node."""
    for suspicion in suspicions:
        nodes = suspicion.nodes
        gate.follow(suspicion.asker)
        part = extractor.part(nodes, silent=gate.asker.silent)
        if len(nodes) == 1:
            gate.ahead(part, plainest(part) if gate.asker.width > 1 else None)
        if gate.fails(part):
            kept = needed(extractor, gate, list(nodes)) if len(nodes) > FEW else list(nodes)
            return again_without(extractor, gate, kept) if len(kept) > 1 else kept
    return []


def keep_needed(extractor: Extractor, gate: Gate) -> list[Node]:
    """Leave out every node that the failure does not need.

    a -> b -> c -> d, where b and d are needed: b(x) -> d. About 2 k log2(n / k) queries for k needed nodes.
    """
    compute = extractor.compute
    if not gate.fails(extractor.part(compute, silent=gate.asker.silent)):
        return compute
    return again_without(extractor, gate, needed(extractor, gate, compute))


def needed(extractor: Extractor, gate: Gate, nodes: list[Node]) -> list[Node]:
    """Return the nodes without which the failure goes."""
    return gate.needed(nodes, lambda kept: extractor.part(kept, silent=gate.asker.silent))


def again_without(extractor: Extractor, gate: Gate, kept: list[Node]) -> list[Node]:
    """Leave out one node at a time, bypassed or with its value as an input. At most two queries each."""
    for node in list(kept):
        rest = [other for other in kept if other is not node]
        if rest and any(
            gate.fails(extractor.part(rest, bypass=bypass, silent=gate.asker.silent)) for bypass in (True, False)
        ):
            kept = rest
    return kept


def drop_outputs(extractor: Extractor, gate: Gate, kept: list[Node]) -> None:
    """Return only what nobody else uses: (a, b(a)) -> (b(a),). One query."""
    gate.fails(extractor.part(kept, only_sinks=True, silent=gate.asker.silent))


def fewer_nodes(gate: Gate) -> None:
    """Try again to leave out nodes, now that the rest is simpler. At most two queries for each node that is left."""
    extractor = extractor_of(gate.current)
    if extractor is None:
        return
    drop_outputs(extractor, gate, again_without(extractor, gate, extractor.compute))


def extractor_of(part: Part) -> Extractor | None:
    """Return what makes parts of a part; None where running it is known to take the process along."""
    setting = part.setting
    gradients = setting is not None and setting.differentiates

    def make() -> Extractor:
        return Extractor(part.graph_module, part.inputs, gradients=gradients, fills=part.fills, setting=setting)

    return tried(f"parts of {part.key}", make)
