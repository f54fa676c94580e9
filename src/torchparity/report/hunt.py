"""A hunt as one HTML page that needs nothing else, and its finds as JSON lines.

Whatever comes from a program, or from a compiler's message about it, is escaped by the template.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchparity.records import SCHEMA_VERSION, HuntBug, HuntForm, HuntSummary, Severity
from torchparity.records.wire import plain_data
from torchparity.report.charts import bars, growth
from torchparity.report.findings import STAGES
from torchparity.report.lines import PAGE
from torchparity.report.machine import write_whole
from torchparity.report.page import environment, part
from torchparity.version import __version__

FINDS = "finds.jsonl"
SHOWN_FINDS = 400
ESSENCE_LINES, ESSENCE_WIDTH = 3, 110
# Where a number of a known bug leads.
UPSTREAM = "https://github.com/pytorch/pytorch/issues/"
# A form stands out where it is in finds so many times as often as the average, and in so many finds at least.
STANDS_OUT, STANDS_OUT_FINDS = 3.0, 3
# Features of programs that are no lines: what of the compiler they made fire, and how they are called.
FIRED = "fired"
NO_LINES = (FIRED, "form")
LEVELS = 4
SEVERITIES = {
    "fails": "compiled, the program raises, crashes, never ends, or returns where eager raises",
    "structure": "another type, dtype or shape, or a result that is missing",
    "nonfinite": "NaN or Inf where it should not be, or none where it should",
    "wrong": "wrong values",
    "precision": "small values lost their precision",
    "layout": "every value agrees; strides, aliases or requires_grad differ",
}
STATES = {
    "settled": "made small, and traced to a bug",
    "unshown": "made small, and traced to a bug that no script of torch alone shows",
    "likely": "looks like a bug that was verified often enough, and was not looked into",
    "gone": "was not seen again, in three runs more",
    "new": "waits to be looked into",
    "stuck": "could not be settled; its note says why",
}
STATUSES = ("same", "differs", "unknown", "error")


def write_hunt(folder: Path, summary: HuntSummary) -> Path:
    """Write the page and the JSON lines of a hunt into its folder; return where the page is."""
    write_whole(finds_text(summary), folder / FINDS, option="the hunt")
    write_whole(hunt_text(summary), folder / PAGE, option="the hunt")
    return folder / PAGE


def hunt_data(summary: HuntSummary) -> dict[str, Any]:
    """Return a hunt as plain data, ready for JSON."""
    derived = {"programs": summary.programs, "rate": summary.rate, "new": summary.new}
    return {"schema": SCHEMA_VERSION, "torchparity": __version__, **plain_data(summary), **derived}


def finds_text(summary: HuntSummary) -> str:
    """Return every find as a line of JSON."""
    return "".join(json.dumps(plain_data(find), allow_nan=False) + "\n" for find in summary.finds)


def hunt_text(summary: HuntSummary) -> str:
    """Return the page of a hunt."""
    states: dict[str, int] = {}
    for find in summary.finds:
        states[find.state] = states.get(find.state, 0) + 1
    return (
        environment()
        .get_template("hunt.html")
        .render(
            hunt=summary,
            title=headline(summary),
            style=part("style.css") + part("hunt.css"),
            script=part("page.js"),
            charts=charts(summary),
            statuses=[(name, summary.statuses.get(name, 0)) for name in (*STATUSES, *others(summary))],
            rows=[bug_row(number, bug) for number, bug in enumerate(summary.bugs, 1)],
            numbers={bug.name: number for number, bug in enumerate(summary.bugs, 1)},
            filters=filters(summary.bugs),
            finds=summary.finds[:SHOWN_FINDS],
            finds_left=max(0, len(summary.finds) - SHOWN_FINDS),
            states=[(state, count, STATES.get(state, "")) for state, count in ordered(states, STATES)],
            tables=tables(summary),
            never=[form for form in summary.forms if not form.lines],
            lines_drawn=sum(form.lines for form in summary.forms if form.table not in NO_LINES),
            lined=[form for form in summary.forms if form.table not in NO_LINES],
            fired=sum(form.table == FIRED for form in summary.forms),
            lines_left_out=sum(reason.count for reason in summary.left_out),
            finds_file=FINDS,
            severities=SEVERITIES,
            rank=severity_rank,
            options_text=options_text,
            form_text=form_text,
            moment=moment_text,
            minutes=minutes_text,
        )
    )


def headline(summary: HuntSummary) -> str:
    """Say in a line what came of a hunt."""
    known = len(summary.bugs) - summary.new
    programs = f"in {summary.programs:,} program{'s' * (summary.programs != 1)}"
    if not summary.bugs:
        waiting = f", {len(summary.finds)} find{'s' * (len(summary.finds) != 1)}" if summary.finds else ""
        return f"No bug yet{waiting} {programs}"
    new = f"{summary.new} new bug{'s' * (summary.new != 1)}"
    if not known:
        return f"{new} {programs}"
    return f"{new} and {known} known {programs}" if summary.new else f"{known} known bug{'s' * (known != 1)} {programs}"


def others(summary: HuntSummary) -> list[str]:
    """Return ways for a program to come out that have no place of their own."""
    return [name for name in summary.statuses if name not in STATUSES]


def ordered(counts: Mapping[str, int], order: Iterable[str]) -> list[tuple[str, int]]:
    """Return counts in an order, and those that it does not name at the end."""
    names = [name for name in order if name in counts]
    return [(name, counts[name]) for name in [*names, *sorted(set(counts) - set(names))]]


def charts(summary: HuntSummary) -> list[tuple[str, Any]]:
    """Return drawings over time, each with what it shows: programs and finds, finds so far, bugs so far."""
    span, buckets = summary.bucket_minutes, summary.buckets
    finds, bugs = [bucket.finds for bucket in buckets], [bucket.bugs for bucket in buckets]
    length = f"in {len(buckets) * span} minutes"
    pairs = [(bucket.programs, bucket.finds) for bucket in buckets]
    label = f"{summary.programs} programs {length}, {sum(finds)} of them finds"
    drawn = (
        ("rate", bars(pairs, span=span, label=label, words=("programs", "finds"))),
        (f"Finds so far: {sum(finds):,}", growth(finds, span=span, label=f"{sum(finds)} finds {length}")),
        (f"Bugs so far: {sum(bugs):,}", growth(bugs, span=span, label=f"{sum(bugs)} bugs {length}")),
    )
    return [(caption, drawing) for caption, drawing in drawn if drawing]


# --- bugs ----------------------------------------------------------------------------------------


def bug_row(number: int, bug: HuntBug) -> dict[str, Any]:
    """Return a bug as the table shows it."""
    return {
        "bug": bug,
        "number": number,
        "essence": essence(bug.program),
        "where": STAGES.get(bug.stage, bug.stage.replace("_", " ")),
        "cure": options_text(bug.switch) if bug.switch else "",
        "upstream": f"{UPSTREAM}{bug.known}" if re.fullmatch(r"[0-9]{1,9}", bug.known) else "",
        "files": [(Path(path).name, path) for path in bug.files],
        "folder": str(Path(bug.files[0]).parent) if bug.files else "",
    }


def essence(program: str) -> str:
    """Return the first lines of the function of a program: what a reader knows a bug by."""
    body: list[str] = []
    lines = program.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith("def program(")), None)
    for line in lines[start + 1 :] if start is not None else []:
        if line.strip() and not line.startswith(" "):
            break
        if line.strip():
            body.append(line)
    cut = [line if len(line) <= ESSENCE_WIDTH else f"{line[:ESSENCE_WIDTH]}…" for line in body[:ESSENCE_LINES]]
    return textwrap.dedent("\n".join(cut)) + ("\n…" if len(body) > ESSENCE_LINES else "")


def filters(bugs: Sequence[HuntBug]) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """Return by what bugs can be chosen: a name, and its values with their words and counts."""
    found = []
    for name in ("severity", "kind", "stage"):
        counts: dict[str, int] = {}
        for bug in bugs:
            counts[getattr(bug, name)] = counts.get(getattr(bug, name), 0) + 1
        order = SEVERITIES if name == "severity" else sorted(counts)
        found.append((name, [(value, value.replace("_", " "), count) for value, count in ordered(counts, order)]))
    return found


def severity_rank(severity: str) -> int:
    """Return the place of a severity in their order; -1 for one that has none."""
    order = [entry.value for entry in Severity]
    return order.index(severity) if severity in order else -1


def options_text(options: Mapping[str, Any]) -> str:
    """Return options as one writes them; settings of the compiler by their own names."""
    plain = {name: value for name, value in options.items() if name != "config"}
    settings = options.get("config") or {}
    plain |= settings if isinstance(settings, Mapping) else {"config": settings}
    return ", ".join(f"{name}={value!r}" for name, value in plain.items()) or "defaults"


# --- coverage ------------------------------------------------------------------------------------


def tables(summary: HuntSummary) -> list[dict[str, Any]]:
    """Return the forms of lines table by table, each with how strongly its cell is coloured."""
    most = max((form.lines for form in summary.forms), default=0)
    average = summary.differing / summary.programs if summary.programs else 0.0
    found: dict[str, dict[str, Any]] = {}
    for form in summary.forms:
        table = found.setdefault(form.table, {"name": form.table, "cells": [], "drawn": 0, "lines": 0})
        out = form.finds >= STANDS_OUT_FINDS and form.finds > STANDS_OUT * average * form.programs
        table["cells"].append({"form": form, "level": level(form, most), "out": out, "share": share(form)})
        table["drawn"] += bool(form.lines)
        table["lines"] += form.lines
    return list(found.values())


def level(form: HuntForm, most: int) -> int:
    """Return how strongly a form is coloured, by the logarithm of its count: 0 where it was never drawn."""
    if not form.lines:
        return 0
    return min(LEVELS, 1 + int(LEVELS * math.log(form.lines) / math.log(most + 1)))


def share(form: HuntForm) -> float:
    """Return how many of a hundred programs with a form are finds."""
    return 100 * form.finds / form.programs if form.programs else 0.0


def form_text(name: str) -> str:
    """Return a form of a line without the braces of its holes: `{x}[{index}]` -> `x[index]`."""
    return re.sub(r"\{(\w+)\}", r"\1", name)


def moment_text(moment: str) -> str:
    """Return a time as people read it."""
    return moment.replace("T", " ").replace("+00:00", " UTC")


def minutes_text(minutes: float) -> str:
    """Return a duration as people say it."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{int(minutes // 60)} h {minutes % 60:.0f} min"
