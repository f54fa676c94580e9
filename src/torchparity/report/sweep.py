"""A sweep as one HTML page that needs nothing else, and as Markdown for a CI job."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity.records import Severity, SweepCell, SweepSummary
from torchparity.report.lines import PAGE
from torchparity.report.machine import write_whole
from torchparity.report.page import environment, part
from torchparity.report.summary import plain

STATUSES = ("differs", "unknown", "same")
WAITING = "waiting"
# What only Python can say of a target.
IN_PYTHON = ("device", "dtype", "batch")
# So many failures are listed in Markdown; the page and the store have all.
LISTED = 50
# A cell counts as slower from this ratio on, and these many seconds.
SLOWER, SLOWER_SECONDS = 1.25, 2.0
WORDS = {
    "new": "not in the baseline",
    "changed": "fails in another way than the baseline says",
    "expired": "in the baseline, but accepted no longer",
    "known": "in the baseline",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the matrix: a target, its cells by column, and what it is sorted and filtered by."""

    title: str
    cells: tuple[SweepCell | None, ...]
    worst: int
    seconds: float
    statuses: str
    labels: str
    words: str


def write_sweep(folder: Path, summary: SweepSummary) -> Path:
    """Write the page of a sweep into its folder; return where it is."""
    write_whole(sweep_text(summary), folder / PAGE, option="the sweep")
    return folder / PAGE


def sweep_text(summary: SweepSummary) -> str:
    """Return the page of a sweep."""
    columns = columns_of(summary)
    return (
        environment()
        .get_template("sweep.html")
        .render(
            sweep=summary,
            title=headline(summary),
            style=part("style.css") + part("sweep.css"),
            script=part("page.js") + part("sweep.js"),
            columns=[column_name(column, summary) for column in columns],
            rows=rows_of(summary, columns),
            counts=counts(summary),
            labels=sorted({label for cell in summary.cells for label in cell.labels}),
            changes=[change for change in summary.changes if change.word != "same"],
            slower=slower(summary),
            words=WORDS,
            sparks=sparks,
            command=command_of,
        )
    )


def headline(summary: SweepSummary) -> str:
    """Say in a line what came of a sweep."""
    failing = [cell for cell in summary.failing if cell.status == "differs"]
    cells = f"{len(summary.cells):,} cell{'s' * (len(summary.cells) != 1)}"
    if summary.waiting:
        return f"{len(summary.cells) - summary.waiting:,} of {cells} judged so far"
    if failing:
        return f"{len(failing)} of {cells} differ and are not accepted"
    unknown = sum(cell.status == "unknown" for cell in summary.failing)
    if unknown:
        return f"{unknown} of {cells} could not be judged"
    return f"Nothing new in {cells}"


def columns_of(summary: SweepSummary) -> list[tuple[str, int, int]]:
    """Return the columns of the matrix: options, environment, repetition, in their order."""
    return list(dict.fromkeys((cell.options, cell.environment, cell.repeat) for cell in summary.cells))


def column_name(column: tuple[str, int, int], summary: SweepSummary) -> str:
    """Return what a column is called: environments and repetitions where there are several."""
    options, place, repeat = column
    words = [options]
    if len(summary.environments) > 1:
        words.append(f"torch {summary.environments[place].get('torch', place)}")
    if any(cell.repeat for cell in summary.cells):
        words.append(f"#{repeat + 1}")
    return " · ".join(words)


def rows_of(summary: SweepSummary, columns: Sequence[tuple[str, int, int]]) -> list[Row]:
    """Return the rows of the matrix, in the order of the suite."""
    held: dict[str, dict[tuple[str, int, int], SweepCell]] = {}
    for cell in summary.cells:
        held.setdefault(cell.title, {})[cell.options, cell.environment, cell.repeat] = cell
    rows = []
    for title, cells in held.items():
        own = list(cells.values())
        rows.append(
            Row(
                title=title,
                cells=tuple(cells.get(column) for column in columns),
                worst=max(rank(cell) for cell in own),
                seconds=sum(cell.seconds for cell in own),
                statuses=" ".join(sorted({cell.status or WAITING for cell in own})),
                labels=" ".join(sorted({label for cell in own for label in cell.labels})),
                words=" ".join(sorted({cell.baseline for cell in own} - {""})),
            )
        )
    return rows


def rank(cell: SweepCell) -> int:
    """Return how bad a cell is, as a number."""
    if cell.status == "unknown":
        return 1
    return 1 + Severity(cell.severity).rank if cell.status == "differs" and cell.severity else 0


def counts(summary: SweepSummary) -> list[tuple[str, int]]:
    """Return how many cells came out how."""
    found = [(status, summary.statuses.get(status, 0)) for status in STATUSES]
    return [*found, *([(WAITING, summary.waiting)] if summary.waiting else [])]


def slower(summary: SweepSummary) -> list[Any]:
    """Return the cells that took clearly longer in the last environment than in the first, the worst first."""
    times = {(cell.title, cell.options): cell.seconds for cell in summary.cells}
    found = [
        change
        for change in summary.changes
        if change.slower >= SLOWER and times.get((change.title, change.options), 0.0) >= SLOWER_SECONDS
    ]
    return sorted(found, key=lambda change: -change.slower)


def sparks(history: Sequence[str]) -> str:
    """Return the statuses of earlier sweeps as letters, which the page draws: s same, d differs, u unknown, - none."""
    return "".join(status[:1] or "-" for status in history)


def command_of(cell: SweepCell) -> str:
    """Return what checks one cell again: a command, or a line of Python where the command line cannot say it."""
    odd = {name: cell.given[name] for name in IN_PYTHON if name in cell.given}
    tables = any(isinstance(value, Mapping | list | tuple) for value in cell.given.values())
    if odd or tables or cell.parameters:
        place = {**odd, **({"parameters": dict(cell.parameters)} if cell.parameters else {})}
        named = "".join(f", {name}={value!r}" for name, value in place.items())
        options = "".join(f", {name}={value!r}" for name, value in cell.given.items() if name not in IN_PYTHON)
        return f"torchparity.check(torchparity.Target({cell.target!r}{named}).load(){options})"
    flags = []
    for name, value in cell.given.items():
        if value is not False:
            flags.append(f"--{name.replace('_', '-')}" + (f" {value}" if value is not True else ""))
    return " ".join(["torchparity check", cell.target, *flags])


@functools.lru_cache(maxsize=4096)
def shown(text: str) -> str:
    """Return a text as Markdown shows it."""
    return plain(text)


def markdown_text(summary: SweepSummary) -> str:
    """Return what a sweep found as GitHub's Markdown."""
    told = ", ".join(f"{count:,} {status}" for status, count in counts(summary) if count)
    lines = [f"## {headline(summary)}", "", f"{told}. Suite {shown(summary.suite)}.", ""]
    for word in ("new", "changed", "expired"):
        cells = [cell for cell in summary.cells if cell.baseline == word]
        if cells:
            lines += [f"### {word.capitalize()}: {WORDS[word]}", "", *table(cells), ""]
    if summary.flaky:
        lines += ["### Flaky: repetitions came out differently", "", *table(summary.flaky), ""]
    changed = [change for change in summary.changes if change.word != "same"]
    if changed:
        lines += [
            "### Between the environments",
            "",
            "| target | options | | before | after | since |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {shown(change.title)} | {shown(change.options)} | {change.word} | {change.before} | {change.after} | "
            f"{shown(change.since)} |"
            for change in changed[:LISTED]
        ]
        lines.append("")
    if summary.gone:
        lines += ["### Gone: in the baseline, and agrees now", "", *(f"- {shown(line)}" for line in summary.gone), ""]
    return "\n".join(lines)


def table(cells: Sequence[SweepCell]) -> list[str]:
    """Return cells as the lines of a table."""
    lines = ["| target | options | verdict | severity | why |", "|---|---|---|---|---|"]
    for cell in cells[:LISTED]:
        words = (cell.title, cell.options, f"{cell.status} {cell.kind}".strip(), cell.severity, cell.reason[:160])
        lines.append(f"| {' | '.join(shown(word) for word in words)} |")
    if len(cells) > LISTED:
        lines.append(f"| … and {len(cells) - LISTED} more | | | | |")
    return lines
