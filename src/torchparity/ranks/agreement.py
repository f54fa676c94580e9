"""Do all ranks compile the same? A backend that only looks, and asks the others about every graph before it runs.

Ranks that compile different graphs, or graphs for different shapes, meet different collectives, and then wait for each
other without end.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchparity import torchapi
from torchparity.compilers.recipe import Recipe
from torchparity.ranks.talk import Ranks
from torchparity.records import GraphDifference
from torchparity.report.findings import short_line
from torchparity.repro.names import called_name, line_of
from torchparity.run.plan import Plan
from torchparity.run.step import Runner
from torchparity.run.subject import Subject

NONE = "nothing"


class RanksApart(Exception):
    """Ranks compile different graphs: this one's run ends here, and so does that of all others."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One node of a graph as ranks compare it: its text, where no rank's own names or device numbers are left."""

    name: str
    text: str
    source: str = ""


class Look:
    """A torch.compile backend that compares every graph with the other ranks' and runs it as it is."""

    __name__ = "look"

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.graphs = 0
        self.difference: GraphDifference | None = None

    def __call__(self, graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """Compile as torch.compile asks a backend to."""
        self._compare(lines_of(graph_module, inputs))
        if self.difference is not None:
            raise RanksApart(f"graph {self.graphs}")
        return graph_module.forward

    def finish(self, failure: str = "") -> None:
        """Tell the others that this rank has no further graph, and whether it has failed before the end."""
        if self.difference is None:
            self._compare([], failure)

    def _compare(self, lines: list[Line], failure: str = "") -> None:
        """Exchange digests, and, only where they differ, the graphs themselves."""
        self.graphs += 1
        text = "\n".join(line.text for line in lines)
        digest = hashlib.sha256(text.encode()).hexdigest()
        digests = self.ranks.gather(f"graph {self.graphs}", digest, failure=failure)
        if len(set(digests)) > 1:
            graphs = self.ranks.gather(f"graph {self.graphs} in full", [asdict(line) for line in lines])
            self.difference = first_difference(
                self.graphs, digests, [[Line(**line) for line in graph] for graph in graphs]
            )


def compare_graphs(subject: Subject, plan: Plan, recipe: Recipe, ranks: Ranks) -> GraphDifference | None:
    """Run a model once on all ranks, compiled by nothing; return where their graphs first differ."""
    if not ranks.same_graphs:
        return None
    look = Look(ranks)
    looking = replace(recipe.with_eager_random(), backend=look, mode=None, options={})
    runner = Runner(subject, plan)
    ranks.begin("comparing graphs")
    try:
        with torch.enable_grad(), looking.active():
            ending = runner.run(looking.build(subject.model), lambda leaf: None)
    finally:
        torch.compiler.reset()
        runner.release()
    look.finish(f"{ending.failure.type}: {ending.failure.message}" if ending.failure is not None else "")
    return look.difference


def first_difference(number: int, digests: list[str], graphs: list[list[Line]]) -> GraphDifference:
    """Return where the first rank that is not like most others leaves them."""
    usual = Counter(digests).most_common(1)[0][0]  # Of equally many, the one that comes first: rank 0's.
    against = digests.index(usual)
    rank = next(rank for rank, digest in enumerate(digests) if digest != usual)
    here, there = graphs[rank], graphs[against]
    if not here or not there:
        words = [f"a graph of {len(graph)} nodes" if graph else NONE for graph in (here, there)]
        return GraphDifference(rank=rank, against=against, graph=number, here=words[0], there=words[1])
    missing = Line(name="", text=NONE)
    place = next(
        (index for index, pair in enumerate(zip(here, there, strict=False)) if pair[0].text != pair[1].text),
        min(len(here), len(there)),
    )
    left, right = (graph[place] if place < len(graph) else missing for graph in (here, there))
    return GraphDifference(
        rank=rank,
        against=against,
        graph=number,
        here=left.text,
        there=right.text,
        node=left.name or right.name,
        source=left.source or right.source,
    )


def lines_of(graph_module: GraphModule, inputs: list[Any]) -> list[Line]:
    """Return a graph as lines, its inputs with their shapes."""
    numbers = {node: index for index, node in enumerate(graph_module.graph.nodes)}
    given = iter(inputs)
    lines = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            real = next(given, None)
            text = f"input {described(node.meta.get('example_value', real))}"  # Dynamo's example has the open sizes.
        else:
            spoken = [spoken_argument(entry, numbers) for entry in node.args]
            spoken += [f"{key}={spoken_argument(entry, numbers)}" for key, entry in node.kwargs.items()]
            text = f"{called_name(node)}({', '.join(spoken)})"
        lines.append(Line(name=node.name, text=text, source=short_line(line_of(node)).partition(": ")[0]))
    return lines


def described(value: Any) -> str:
    """Return dtype, shape and kind of device of an input; a size that the compiler keeps open by its name."""
    if isinstance(value, torch.SymInt):
        return torchapi.symbol_expression(value)
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    sizes = ", ".join(map(str, value.shape))  # An open size prints as its name.
    gradient = ", requires_grad" if value.requires_grad else ""
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}] {value.device.type}{gradient}"


def spoken_argument(value: Any, numbers: dict[Node, int]) -> str:
    """Return an argument as text that is the same on every rank which means the same."""
    if isinstance(value, Node):
        return f"%{numbers[value]}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(spoken_argument(entry, numbers) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {spoken_argument(entry, numbers)}' for key, entry in value.items())}}}"
    if isinstance(value, torch.device):
        return value.type  # Each rank has its own.
    if isinstance(value, bool | int | float | str | complex | type(None) | torch.dtype | slice | torch.SymInt):
        return repr(value)
    return type(value).__name__
