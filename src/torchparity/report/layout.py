"""Where the nodes of a graph stand in its picture: layers from top to bottom, each node near what it comes from.

layers   an operation stands below everything it uses; an input stands just above its first user
order    within a layer, by the mean place of neighbours: down, up, and down again
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NODE_WIDTH, NODE_HEIGHT = 156, 40
GAP_ACROSS, GAP_DOWN = 20, 34
# Graphs of fewer layers stay in one column.
FOLDED = 24
# Width over height that a whole picture should have, and what separates two columns, in widths of a node.
SHAPE, BETWEEN = 1.5, 1.0
SWEEPS = 4
# Nodes that stand beside the operations that use them.
BESIDE = ("input", "constant")
# A page with more nodes than this is slow; the neighbourhood of the culprit is drawn.
MOST = 3000


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A node's number in the graph, and the middle of its box."""

    number: int
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Where every node that is drawn stands, the edges between them, and the size of it all."""

    nodes: tuple[Placed, ...]
    edges: tuple[tuple[int, int], ...]
    width: float
    height: float
    left_out: int = 0


def lay_out(nodes: Sequence[Mapping[str, Any]], culprit: int | None = None) -> Picture:
    """Place nodes, each a mapping with `role` and `inputs` (numbers of earlier nodes)."""
    drawn = chosen(len(nodes), culprit)
    inputs = {number: [entry for entry in nodes[number]["inputs"] if entry in drawn] for number in drawn}
    users: dict[int, list[int]] = {number: [] for number in drawn}
    for number, entries in inputs.items():
        for entry in entries:
            users[entry].append(number)
    layers = layers_of(nodes, drawn, inputs, users)
    rows: dict[int, list[int]] = {}
    for number in drawn:
        rows.setdefault(layers[number], []).append(number)
    ordered = [rows[layer] for layer in sorted(rows)]
    aside = frozenset(number for number in drawn if nodes[number]["role"] in BESIDE)
    spots, width, depth = folded(ordered, settle(ordered, inputs, users, aside))
    across, down = NODE_WIDTH + GAP_ACROSS, NODE_HEIGHT + GAP_DOWN
    placed = tuple(
        Placed(number=number, x=(spots[number][0] + 0.5) * across, y=(spots[number][1] + 0.5) * down)
        for number in drawn
    )
    edges = tuple((entry, number) for number, entries in inputs.items() for entry in entries)
    return Picture(
        nodes=placed, edges=edges, width=width * across, height=depth * down, left_out=len(nodes) - len(drawn)
    )


def folded(
    rows: Sequence[Sequence[int]], places: Mapping[int, float]
) -> tuple[dict[int, tuple[float, int]], float, int]:
    """Break the layers into columns side by side; return each node's spot, and the width and depth of it all.

    Of all ways to break them, the one whose shape is nearest to a screen's.
    """

    def columns_of(depth: int) -> list[Sequence[Sequence[int]]]:
        return [rows[start : start + depth] for start in range(0, len(rows), depth)]

    def widths_of(depth: int) -> list[float]:
        spans = [[places[number] for row in column for number in row] for column in columns_of(depth)]
        return [max(span) - min(span) + 1 + BETWEEN for span in spans if span]

    def strangeness(depth: int) -> float:
        wide = sum(widths_of(depth)) * (NODE_WIDTH + GAP_ACROSS)
        return abs(math.log(wide / (depth * (NODE_HEIGHT + GAP_DOWN)) / SHAPE))

    depth = min(range(1, len(rows) + 1), key=strangeness, default=1) if len(rows) > FOLDED else max(1, len(rows))
    spots: dict[int, tuple[float, int]] = {}
    left = 0.0
    for column, width in zip(columns_of(depth), widths_of(depth), strict=True):
        first = min(places[number] for row in column for number in row)
        for layer, row in enumerate(column):
            for number in row:
                spots[number] = (places[number] - first + left, layer)
        left += width
    return spots, max(left - BETWEEN, 1.0), depth


def chosen(count: int, culprit: int | None) -> range:
    """Return the numbers of the nodes that are drawn: all, or those around the culprit."""
    if count <= MOST:
        return range(count)
    start = min(max(0, (culprit or 0) - MOST // 2), count - MOST)
    return range(start, start + MOST)


def layers_of(
    nodes: Sequence[Mapping[str, Any]],
    drawn: Sequence[int],
    inputs: Mapping[int, Sequence[int]],
    users: Mapping[int, Sequence[int]],
) -> dict[int, int]:
    """Return the layer of each node: below all it uses; inputs just above their first user."""
    layers: dict[int, int] = {}
    for number in drawn:
        layers[number] = 1 + max((layers[entry] for entry in inputs[number]), default=-1)
    for number in drawn:
        if nodes[number]["role"] in BESIDE and users[number]:
            layers[number] = min(layers[user] for user in users[number]) - 1
    return layers


def settle(
    rows: list[list[int]],
    inputs: Mapping[int, Sequence[int]],
    users: Mapping[int, Sequence[int]],
    aside: frozenset[int],
) -> dict[int, float]:
    """Return how far to the right each node stands, in widths: near its neighbours, and never on another.

    Nodes that stand `aside`, inputs and constants, take the free places around the others and move none of them.
    """
    places = {number: float(position) for row in rows for position, number in enumerate(row)}

    def wanted(number: int, near: Mapping[int, Sequence[int]]) -> float:
        weighty = [entry for entry in near[number] if entry not in aside] or near[number]
        return mean([places[entry] for entry in weighty], places[number])

    for sweep in range(SWEEPS):
        near = users if sweep % 2 else inputs
        for row in reversed(rows) if sweep % 2 else rows:
            wishes = {number: wanted(number, users if number in aside else near) for number in row}
            spread([number for number in row if number not in aside], wishes, places)
            fill([number for number in row if number in aside], row, wishes, places)
    return places


def spread(row: list[int], wanted: Mapping[int, float], places: dict[int, float]) -> None:
    """Give each node of a row a place as near as can be to the one it wants, one width apart at least."""
    ordered = sorted(row, key=lambda number: (wanted[number], number))
    taken: list[float] = []
    for number in ordered:
        taken.append(max(wanted[number], taken[-1] + 1) if taken else wanted[number])
    pushed = mean([place - wanted[number] for place, number in zip(taken, ordered, strict=True)], 0.0)
    for place, number in zip(taken, ordered, strict=True):
        places[number] = place - pushed


def fill(few: list[int], row: list[int], wanted: Mapping[int, float], places: dict[int, float]) -> None:
    """Give some nodes of a row the free places nearest to what they want, to the right first."""
    taken = [places[number] for number in row if number not in few]
    for number in few:
        steps = (side * step for step in range(len(row) + 1) for side in (1, -1))
        tries = (wanted[number] + step for step in steps)
        places[number] = next(place for place in tries if all(abs(place - other) >= 1 for other in taken))
        taken.append(places[number])


def mean(values: Sequence[float], otherwise: float) -> float:
    """Return the mean of values, or something else where there are none."""
    return sum(values) / len(values) if values else otherwise
