"""Openings from a model: stretches of its graphs, as Dynamo hands them over, with inputs like those that they had."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

import torch
from torch.fx import Node

from torchparity.errors import CaseError
from torchparity.graphs.extract import Extractor, opened_graph
from torchparity.graphs.part import Part
from torchparity.hunting.openings import Given, Opening
from torchparity.hunting.operators import NAMES, Unsaid, given_of
from torchparity.programs.script import DRAWS
from torchparity.repro.case import Case
from torchparity.repro.names import input_names, operation_name
from torchparity.repro.opening import open_case
from torchparity.repro.plain import function_source
from torchparity.repro.source import Source
from torchparity.repro.values import literal

# How many operations a stretch has, and how many stretches there are of one graph.
LENGTHS = (1, 2, 3, 4, 6, 8)
MOST = 400
# What a graph does to the process around it, and what only means something inside of it.
UNFIT = re.compile(r"_set_grad_enabled|_enter_autocast|_exit_autocast|_functorch|set_default|\bself\.|_saved_tensors")


def openings_of_case(case: Case) -> Iterator[Opening]:
    """Yield stretches of the graph of a case that differ from each other in more than values."""
    extractor = opened_graph(open_case(case))
    operations = extractor.compute
    stretches = [operations[start : start + length] for length in LENGTHS for start in range(len(operations))]
    random.Random(0).shuffle(stretches)
    seen = set()
    for nodes in stretches:
        opening = opening_of(extractor, nodes)
        if opening is not None and (key := (opening.lines, repr(opening.inputs))) not in seen:
            seen.add(key)
            yield opening
        if len(seen) == MOST:
            return


def opening_of(extractor: Extractor, nodes: Sequence[Node]) -> Opening | None:
    """Return some operations of a graph as an opening; None where they cannot be said in plain lines."""
    try:
        part = extractor.part(nodes, bypass=False, only_sinks=True)
        source = Source()
        text = function_source(part.graph_module, source)
        inputs, literals = inputs_of(part)
    except (CaseError, Unsaid, RuntimeError, KeyError):
        return None
    lines = text[1:-1]
    whole = "\n".join(lines)
    if not inputs or source.files or UNFIT.search(whole) or DRAWS.search(whole):
        return None
    names = dict(zip(inputs, NAMES, strict=False))
    if len(names) < len(inputs):
        return None
    made = renamed_in(lines, {**names, **literals})
    return Opening(
        name=f"model:{'+'.join(dict.fromkeys(short_name(node) for node in nodes))}",
        inputs={names[name]: given for name, given in inputs.items()},
        lines=tuple(made),
        imports=tuple(sorted(source.imports - {"import torch"})),
    )


def inputs_of(part: Part) -> tuple[dict[str, Given], dict[str, str]]:
    """Return the tensors that a part takes by name, and the other values as text."""
    tensors: dict[str, Given] = {}
    literals: dict[str, str] = {}
    for name, value in zip(input_names(part.graph_module).values(), part.inputs, strict=True):
        if isinstance(value, torch.Tensor):
            tensors[name] = given_of(value)
        elif (text := literal(value)) is not None:
            literals[name] = text
        else:
            raise Unsaid
    return tensors, literals


def renamed_in(lines: Sequence[str], names: dict[str, str]) -> list[str]:
    """Return lines with other names, none of which a new one may hide: single letters of the graph's own get longer."""
    made = {found[1] for line in lines if (found := re.match(r"\s*(\w+)\s*=", line))}
    names = {**{name: f"{name}_made" for name in made if len(name) == 1}, **names}
    pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?!\w|=[^=])") if names else None
    return [pattern.sub(lambda found: names[found[1]], line.strip()) if pattern else line.strip() for line in lines]


def short_name(node: Node) -> str:
    """Return what an operation is called in counts."""
    return operation_name(node).rpartition(".")[2].removeprefix("<built-in function ").removesuffix(">")
