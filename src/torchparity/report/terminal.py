"""A verdict as a person reads it: the answer, the reasons, and a table with the worst leaf first."""

from __future__ import annotations

import io
import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchparity.records import UNCHANGED, LeafReport, Severity, Status, Verdict
from torchparity.report.story import listed

STYLES = {Status.SAME: "bold green", Status.DIFFERS: "bold red", Status.UNKNOWN: "bold yellow"}
SHOWN_LEAVES = 10
SHOWN_KERNELS = 4
SHOWN_BREAKS = 2
# Columns below which a table shows no more than leaf, kind and score.
NARROW = 64


def render(verdict: Verdict, console: Console, *, leaves: int = SHOWN_LEAVES) -> None:
    """Print a verdict."""
    word = verdict.status.value.upper()
    backend = verdict.recipe.get("backend", "")
    console.print(
        f"[{STYLES[verdict.status]}]{word}[/]  {escape(verdict.subject)} against {escape(backend)}"
        f"  ({len(verdict.runs)} runs, {verdict.seconds:.1f} s)"
    )
    for reason in verdict.reasons:
        console.print(f"  {escape(reason)}", highlight=False)
    for line in (severity_text(verdict), extent_text(verdict), *tuned_lines(verdict)):
        if line:
            console.print(f"  {escape(line)}", highlight=False)
    if verdict.failure is not None and verdict.failure.frame:
        console.print(f"  at {escape(verdict.failure.frame)}", highlight=False)
    telling = [leaf for leaf in verdict.leaves if leaf.note != UNCHANGED]
    shown = telling[:leaves]
    if shown:
        console.print(table(verdict, shown, narrow=console.width < NARROW))
    hidden = len(telling) - len(shown)
    unchanged = len(verdict.leaves) - len(telling)
    rest = [f"{hidden} more leaves (--leaves N shows more, --json FILE all)"] if hidden else []
    rest += [f"{unchanged} parameters, buffers and inputs left unchanged by both"] if unchanged else []
    if rest:
        console.print(f"  and {', and '.join(rest)}", highlight=False)


def severity_text(verdict: Verdict) -> str:
    """Say how much a difference matters, and by how much the worst leaf has moved as a whole."""
    if verdict.status is not Status.DIFFERS:
        return ""
    worst = max(verdict.leaves, key=lambda leaf: (leaf.severity.rank, leaf.moved), default=None)
    moved = ""
    if worst is not None and worst.severity in (Severity.WRONG, Severity.PRECISION) and math.isfinite(worst.moved):
        moved = f": as a whole {worst.path} has moved by {share(worst.moved)} of its size"
    return f"severity {verdict.severity.value}{moved}"


def share(number: float) -> str:
    """Print a share as percent, with two digits that say something."""
    return f"{100 * number:.2g} %"


def extent_text(verdict: Verdict) -> str:
    """Say how much of the model was compiled."""
    extent = verdict.compiled
    if extent is None or not extent.graphs:
        return ""
    graphs = f"{extent.graphs} graph{'s' if extent.graphs != 1 else ''}"
    if extent.share is None:
        return f"compiled: {extent.inside} operations in {graphs}"
    left = f"; left to Python: {listed(extent.left, SHOWN_BREAKS)}" if extent.left and extent.share < 1 else ""
    return f"compiled: {min(extent.inside, extent.operations)} of {extent.operations} operations, in {graphs}{left}"


def tuned_lines(verdict: Verdict) -> list[str]:
    """Say which kernels tuning took, for the first few operations."""
    known = [entry for entry in verdict.tuned if entry.taken]
    lines = [
        f"{entry.kernel}({entry.shapes}) runs {entry.taken}, of {len(entry.choices)} kernels"
        for entry in known[:SHOWN_KERNELS]
    ]
    more = len(known) - len(lines)
    return [*lines, f"and {more} more operations were tuned (--json FILE names all)"] if more else lines


def table(verdict: Verdict, shown: list[LeafReport], *, narrow: bool = False) -> Table:
    """Return the table of leaves; a narrow one keeps what is wrong and how badly."""
    against = "float64" if any(leaf.has_reference for leaf in shown) else "eager"
    result = Table(
        box=None,
        pad_edge=False,
        header_style="dim",
        caption=f"errors against {against}; a score over {verdict.threshold:g} is no rounding",
        caption_justify="left",
    )
    kinds, scores = ([made(leaf) for leaf in shown] for made in (kind_cell, score_cell))
    result.add_column("leaf", overflow="fold", min_width=8)
    result.add_column("kind", overflow="fold", min_width=min(12, max(map(len, ["kind", *kinds]))))
    for name in () if narrow else ("eager", "compiled", "allowed"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("score", justify="right", no_wrap=True, min_width=max(map(len, ["score", *scores])))
    if not narrow:
        result.add_column("where", overflow="fold")
    for leaf in shown:
        style = "" if leaf.status is Status.SAME else STYLES[leaf.status].removeprefix("bold ")
        errors = [number(error) for error in (leaf.eager_error, leaf.candidate_error, leaf.allowed)]
        cells = [escape(leaf.path), escape(kind_cell(leaf)), *errors, score_cell(leaf), escape(where_cell(leaf))]
        result.add_row(*([*cells[:2], cells[-2]] if narrow else cells), style=style)
    return result


def kind_cell(leaf: LeafReport) -> str:
    """Name what is wrong, or what is remarkable."""
    if leaf.mismatches:
        return ", ".join(dict.fromkeys(mismatch.kind.value for mismatch in leaf.mismatches))
    if leaf.note:
        return leaf.note
    return "nearer than eager" if leaf.nearer_than_eager else "ok"


def score_cell(leaf: LeafReport) -> str:
    """Show the worse of the two scores."""
    return f"{max(leaf.score, leaf.aggregate_score):.3g}"


def where_cell(leaf: LeafReport) -> str:
    """Show the place of the worst element, or the two facts that differ."""
    for mismatch in leaf.mismatches:
        place = str(list(mismatch.where)) if mismatch.where is not None else mismatch.detail
        if mismatch.expected or mismatch.actual:
            return f"{place}: {mismatch.expected} became {mismatch.actual}"
        return place
    return str(list(leaf.where)) if leaf.where is not None else ""


def number(value: float) -> str:
    """Print an error briefly."""
    if value == 0:
        return "0"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def plain_text(verdict: Verdict, *, leaves: int = SHOWN_LEAVES) -> str:
    """Return what `render` prints, without colour."""
    buffer = io.StringIO()
    render(verdict, Console(file=buffer, width=120, no_color=True), leaves=leaves)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
