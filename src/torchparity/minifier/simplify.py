"""Passes on what is left of the graph: its inputs, shapes, arguments and settings, made as plain as they may be."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchparity.graphs.part import Part
from torchparity.minifier.arguments import plain_arguments
from torchparity.minifier.edits import Edit, applied, apply_edits
from torchparity.minifier.gate import Gate
from torchparity.minifier.inputs import (
    fill_inputs,
    filling,
    lift_constants,
    merge_inputs,
    merging,
    plain_dtypes,
    plain_layouts,
    without_backward,
)
from torchparity.minifier.shapes import cut_all, shrink_shapes
from torchparity.repro.fills import DATA, ONES, SEEDED, Fill, recognised
from torchparity.request import PLAIN


def simplify(gate: Gate) -> None:
    """Make everything but the nodes plain: all at once where the failure bears it, else pass by pass."""
    gate.annotate(with_known_fills(gate.current))
    plain = [everything(gate.current, ONES), everything(gate.current, SEEDED, arguments=False)]
    gate.ahead(*plain)
    any(gate.fails(part) for part in plain)
    for place, (stage, run) in enumerate(PASSES):
        gate.asker.expect(stage, 2 * (len(PASSES) - place))
        run(gate)


def simplify_types(gate: Gate) -> None:
    """Make dtypes plain, lift tensors out of the graph, look at the forward pass alone. One query where all can be."""
    apply_edits(gate, [*plain_dtypes(gate.current), lift_constants, without_backward])


def simplify_layouts(gate: Gate) -> None:
    """Lay inputs out row by row, and want no gradient of them. One query where all can be."""
    apply_edits(gate, plain_layouts(gate.current))


def simplify_arguments(gate: Gate) -> None:
    """Leave out arguments, and make numbers simple. One query for each way that all can go, and the next one ahead."""
    rounds = plain_arguments(gate.current)
    for edits, upcoming in itertools.zip_longest(rounds, rounds[1:], fillvalue=()):
        if gate.asker.width > 1:  # Making a part runs it.
            part = applied(gate.current, upcoming)
            gate.ahead(part if part.size < gate.current.size else None)
        apply_edits(gate, edits)


def simplify_setting(gate: Gate) -> None:
    """Tell the compiler nothing but its name. One query where nothing of it is needed."""
    apply_edits(gate, plain_setting(gate.current))


PASSES: tuple[tuple[str, Callable[[Gate], None]], ...] = (
    ("shapes", shrink_shapes),
    ("inputs", merge_inputs),
    ("dtypes", simplify_types),
    ("layouts", simplify_layouts),
    ("values", fill_inputs),
    ("arguments", simplify_arguments),
    ("compiler settings", simplify_setting),
)


def with_known_fills(part: Part) -> Part:
    """Return a part that knows which of its inputs are already said by a rule."""
    fills: list[Fill] = [
        recognised(value) if isinstance(value, torch.Tensor) and part.fill_of(place) is DATA else part.fill_of(place)
        for place, value in enumerate(part.inputs)
    ]
    return replace(part, fills=tuple(fills))


def plainest(part: Part) -> Part:
    """Return the first part that `simplify` asks about."""
    return everything(with_known_fills(part), ONES)


def everything(part: Part, fill: Fill, *, arguments: bool = True) -> Part:
    """Return a part with every edit done to it, but for its setting (and its arguments), which the failure may need."""
    part = cut_all(part, 1 if fill is ONES else 2)
    for edits in (
        plain_dtypes(part),
        [lift_constants, without_backward],
        plain_layouts(part),
        merging(part),
    ):
        part = applied(part, edits)
    part = applied(part, filling(part, fill))
    return applied(part, plain_arguments(part)[0]) if arguments else part


def plain_setting(part: Part) -> list[Edit]:
    """Return an edit for everything that the compiler is told beyond its name."""
    if part.setting is None:
        return []
    edits: list[Edit] = [
        functools.partial(set_aside, name=name, key=key)
        for name in ("options", "config")
        for key in getattr(part.setting, name)
    ]
    return edits + [functools.partial(set_aside, name=name) for name in ("mode", "dynamic", "fullgraph", "autocast")]


def set_aside(part: Part, *, name: str, key: str = "") -> Part | None:
    """Return a part that is compiled and run without one thing that was asked for, or one entry of it."""
    if part.setting is None:
        return None
    held: Any = getattr(part.setting, name)
    left: Any = {word: value for word, value in held.items() if word != key} if key else getattr(PLAIN, name)
    return replace(part, setting=replace(part.setting, **{name: left})) if left != held else None
