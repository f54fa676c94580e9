"""Plainer arguments: those that have a default get it, and numbers become simple ones."""

from __future__ import annotations

import functools
from typing import Any

from torchparity import torchapi
from torchparity.graphs.part import Part
from torchparity.minifier.edits import Edit, compute_of, graph_copy, rebuilt, runs_alike

# What a number may become, the plainest first.
NUMBERS: dict[type, tuple[Any, ...]] = {int: (1, 0, 2, 3, 4, 8, 16), float: (1.0, 0.0, 2.0, 0.5)}
ROUNDS = 7


def plain_arguments(part: Part) -> list[list[Edit]]:
    """Return edits in rounds: arguments left out, then numbers made 1, 0, 2, and short."""
    nodes = compute_of(part.graph_module)
    leave_out: list[Edit] = []
    rounds: list[list[Edit]] = [[] for _ in range(ROUNDS)]
    for number, node in enumerate(nodes):
        leave_out += [functools.partial(left_out, number=number, argument=name) for name in node.kwargs]
        if torchapi.has_schema(node.target):
            leave_out += [
                functools.partial(cut_arguments, number=number, count=count)
                for count in range(torchapi.required_arguments(node.target), len(node.args))
            ][:1]
        places: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        for place, argument in places:
            for step, plain in enumerate(plainer(argument)):
                rounds[step].append(functools.partial(replaced, number=number, argument=place, value=plain))
    return [leave_out, *rounds]


def plainer(argument: Any) -> list[Any]:
    """Return simpler numbers than this one, the simplest first."""
    if type(argument) not in NUMBERS:
        return []
    options = tuple(option for option in NUMBERS[type(argument)] if option <= 2 or option < argument)
    short = [float(f"{argument:.2g}")] if isinstance(argument, float) else []
    simpler = [*options[: options.index(argument)]] if argument in options else [*options, *short]
    return [option for option in simpler if option != argument]


def left_out(part: Part, *, number: int, argument: str) -> Part | None:
    """Return a part without one named argument: f(x, approximate="tanh") -> f(x)."""
    graph_module = graph_copy(part)
    node = compute_of(graph_module)[number]
    if argument not in node.kwargs:
        return None
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != argument}
    return runs_alike(rebuilt(part, graph_module, part.inputs), part)


def cut_arguments(part: Part, *, number: int, count: int) -> Part | None:
    """Return a part in which a node gets only its first arguments: f(x, 1, True) -> f(x)."""
    graph_module = graph_copy(part)
    node = compute_of(graph_module)[number]
    if len(node.args) <= count:
        return None
    node.args = node.args[:count]
    return runs_alike(rebuilt(part, graph_module, part.inputs), part)


def replaced(part: Part, *, number: int, argument: int | str, value: Any) -> Part | None:
    """Return a part with a simpler number: f(x, 0.70710678) -> f(x, 1.0)."""
    graph_module = graph_copy(part)
    node = compute_of(graph_module)[number]
    if isinstance(argument, int):
        if argument >= len(node.args):
            return None
        node.args = (*node.args[:argument], value, *node.args[argument + 1 :])
    else:
        if argument not in node.kwargs:
            return None
        node.kwargs = {**node.kwargs, argument: value}
    return runs_alike(rebuilt(part, graph_module, part.inputs), part)
