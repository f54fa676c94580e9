"""Small drawings as SVG: the spread of errors, the curve of a minification, the time line of a compilation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

HISTOGRAM = (220, 56)
CURVE = (760, 260)
MARGIN = 44


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
