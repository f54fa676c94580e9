"""Small drawings as SVG: the spread of errors, the curve of a minification, what happened over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

HISTOGRAM = (220, 56)
CURVE = (760, 260)
MARGIN = 44
# A chart over minutes, and the room for its numbers on the left and below.
OVER_TIME = (380, 190)
TIME_MARGINS = (38, 40)
# From so many minutes on, time is told in hours.
HOURS_FROM = 180


def histogram(spread: Mapping[str, Any] | None, allowed: Any = None) -> Markup:
    """Draw how eager's and the compiled errors are spread, eager upwards and compiled downwards from one axis."""
    if not spread or not (spread["eager"] or spread["candidate"]):
        return Markup("")
    width, height = HISTOGRAM
    first, bins = spread["first"], max(len(spread["eager"]), len(spread["candidate"]))
    most = max([*spread["eager"], *spread["candidate"], 1])
    step, half = width / bins, height / 2
    bars = []
    for name, sign in (("eager", 1), ("candidate", -1)):
        for place, count in enumerate(spread[name]):
            if not count:
                continue
            tall = max(1.0, (half - 2) * math.log1p(count) / math.log1p(most))
            top = half - tall if sign > 0 else half
            bars.append(
                f'<rect class="{name}" x="{place * step:.1f}" y="{top:.1f}" '
                f'width="{max(1.0, step - 1):.1f}" height="{tall:.1f}"/>'
            )
    marks = ""
    if isinstance(allowed, int | float) and allowed > 0:
        place = (math.log2(allowed) - first) * step
        if 0 <= place <= width:
            marks = f'<line class="allowed" x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="{height}"/>'
    low, high = power(first), power(first + bins)
    label = f"errors from {low} to {high}; exact elements: {spread['exact'][0]} of eager, {spread['exact'][1]} compiled"
    return Markup(
        '<svg class="histogram" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        "<title>{label}</title>"
        '<line class="axis" x1="0" x2="{width}" y1="{half}" y2="{half}"/>{drawing}</svg>'
    ).format(width=width, height=height, half=half, label=label, drawing=Markup("".join(bars) + marks))


def power(exponent: int) -> str:
    """Return a power of two as a number people read."""
    return f"{2.0**exponent:.0e}"


def curve(queries: Sequence[Mapping[str, Any]], start: int) -> Markup:
    """Draw a minification: operations over queries on a logarithmic scale, and the best so far as a line."""
    if not queries:
        return Markup("")
    width, height = CURVE
    most = max([start, *(query["operations"] for query in queries), 2])

    def across(place: float) -> float:
        return MARGIN + (width - MARGIN - 12) * place / max(1, len(queries))

    def down(operations: float) -> float:
        return 12 + (height - MARGIN - 12) * (1 - math.log(max(1, operations)) / math.log(most))

    dots, steps, best = [], [f"M{across(0):.1f} {down(start):.1f}"], start
    for place, query in enumerate(queries, 1):
        x, y = across(place), down(query["operations"])
        kind = "adopted" if query["adopted"] else {True: "fails", False: "passes"}.get(query["fails"], "unknown")
        told = escape(f"query {query['number']} ({query['stage']}): {query['operations']} operations, {kind}")
        shape = (
            f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"'
            if kind == "adopted"
            else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"'
        )
        dots.append(f'{shape} class="{kind}"><title>{told}</title></{"rect" if kind == "adopted" else "circle"}>')
        if query["adopted"] and query["operations"] <= best:
            steps.append(f"H{x:.1f} V{y:.1f}")
            best = query["operations"]
    steps.append(f"H{across(len(queries)):.1f}")
    ticks = "".join(
        f'<line class="grid" x1="{MARGIN}" x2="{width - 12}" y1="{down(tick):.1f}" y2="{down(tick):.1f}"/>'
        f'<text x="{MARGIN - 6}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick}</text>'
        for tick in ticks_to(most)
    )
    label = f"{start} operations became {best} in {len(queries)} queries"
    return Markup(
        '<svg class="curve" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{ticks}'
        '<path class="best" d="{path}"/>{dots}'
        '<text x="{middle}" y="{bottom}" text-anchor="middle">queries (1 to {count})</text></svg>'
    ).format(
        width=width,
        height=height,
        label=label,
        ticks=Markup(ticks),
        path=Markup(" ".join(steps)),
        dots=Markup("".join(dots)),
        middle=width // 2,
        bottom=height - 10,
        count=len(queries),
    )


def ticks_to(most: int) -> list[int]:
    """Return where the scale is marked: powers of ten, and the largest number where it stands apart from them."""
    tens = [10**power for power in range(len(str(most))) if 10**power <= most]
    return tens if tens[-1] * 2 > most else [*tens, most]


def time_line(story: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the frames of a story as bars: when each began and how long it took, in shares of the whole."""
    spans = [(frame["function"], frame["compiled"], frame["outcome"], "frame") for frame in story["frames"]]
    for frame in story["frames"]:
        for subgraph in frame["subgraphs"]:
            name = f"subgraph {subgraph['number']} ({subgraph['operations']} operations)"
            spans.append((name, subgraph["compiled"], "", "subgraph"))
            if subgraph["backward"]:
                spans.append((f"{name}, backward", subgraph["backward"], "", "subgraph"))
    whole = max([story["seconds"], *(span["start"] + span["seconds"] for _, span, _, _ in spans)], default=0.0)
    return [
        {
            "name": name,
            "kind": kind,
            "outcome": outcome,
            "seconds": span["seconds"],
            "start": 100 * span["start"] / whole if whole else 0.0,
            "share": max(0.4, 100 * span["seconds"] / whole) if whole else 0.0,
        }
        for name, span, outcome, kind in sorted(spans, key=lambda entry: entry[1]["start"])
    ]


def bars(values: Sequence[tuple[int, int]], *, span: int, label: str, words: tuple[str, str]) -> Markup:
    """Draw pairs (a count, a part of it) over time, each pair a bar of `span` minutes whose foot is the part."""
    if not values:
        return Markup("")
    most = max(*(count for count, _ in values), 1)
    across, down = scales(len(values), most)
    drawn = []
    for place, (count, part) in enumerate(values):
        told = escape(f"from minute {place * span} on: {count} {words[0]}, {part} {words[1]}")
        left, wide = across(place), max(1.0, across(1) - across(0) - 1.5)
        drawn.append(f"<g><title>{told}</title>")
        for name, upper, lower in (("whole", count, part), ("part", part, 0)):
            if upper > lower:
                top, tall = down(upper), down(lower) - down(upper)
                drawn.append(
                    f'<rect class="{name}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'
                )
        drawn.append("</g>")
    return timed("".join(drawn), len(values) * span, most, label)


def growth(values: Sequence[int], *, span: int, label: str) -> Markup:
    """Draw how a count grows over time: a staircase, each step what `span` minutes have added."""
    if not values:
        return Markup("")
    total = sum(values)
    across, down = scales(len(values), max(total, 1))
    so_far, path = 0, [f"M{across(0):.1f} {down(0):.1f}"]
    for place, count in enumerate(values):
        so_far += count
        path.append(f"V{down(so_far):.1f} H{across(place + 1):.1f}")
    line = " ".join(path)
    area = f'<path class="area" d="{line} V{down(0):.1f} Z"/><path class="line" d="{line}"/>'
    return timed(area, len(values) * span, max(total, 1), label)


def scales(count: float, most: int) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return where the beginning of the n-th span, and a count, stand on a chart over time."""
    (width, height), (left, below) = OVER_TIME, TIME_MARGINS

    def across(place: float) -> float:
        return left + (width - left - 8) * place / count

    def down(value: float) -> float:
        return 10 + (height - below - 10) * (1 - value / most)

    return across, down


def timed(drawing: str, minutes: int, most: int, label: str) -> Markup:
    """Return a chart over time: a drawing between its axes."""
    (width, height), (left, below) = OVER_TIME, TIME_MARGINS
    hours = minutes >= HOURS_FROM
    time = minutes // 60 if hours else minutes
    across, down = scales(minutes / 60 if hours else minutes, most)
    grid = "".join(
        f'<line class="grid" x1="{left}" x2="{width - 8}" y1="{down(tick):.1f}" y2="{down(tick):.1f}"/>'
        f'<text x="{left - 6}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick}</text>'
        for tick in round_ticks(most)
    )
    grid += "".join(
        f'<text x="{across(tick):.1f}" y="{height - below + 16}" text-anchor="middle">{tick}</text>'
        for tick in round_ticks(time)
    )
    return Markup(
        '<svg class="over-time" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{grid}{drawing}'
        '<text x="{middle}" y="{bottom}" text-anchor="middle">{unit}</text></svg>'
    ).format(
        width=width,
        height=height,
        label=label,
        grid=Markup(grid),
        drawing=Markup(drawing),
        unit="hours" if hours else "minutes",
        middle=(left + width - 8) // 2,
        bottom=height - 4,
    )


def round_ticks(most: int, count: int = 4) -> list[int]:
    """Return round numbers that mark a scale: from 0 on, in about `count` steps of 1, 2 or 5 times a power of ten."""
    size = 10 ** max(0, len(str(most // count or 1)) - 1)
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * count >= most)
    return list(range(0, most + 1, step))
