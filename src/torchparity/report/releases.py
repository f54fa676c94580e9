"""Since when a script fails, as a person reads it: the answer, a table of releases, the environments that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchparity.records import (
    SCHEMA_VERSION,
    Course,
    ReleaseAnswer,
    ReleaseChange,
    ReleaseEnvironment,
    ReleaseState,
    Since,
)
from torchparity.records.strangers import harmless
from torchparity.records.wire import plain_data

STATES = {ReleaseState.WORKS: "bold green", ReleaseState.FAILS: "bold red", ReleaseState.UNKNOWN: "bold yellow"}
UNITS = ("B", "KB", "MB", "GB", "TB")
THOUSAND = 1000


def conclusion(found: Since) -> str:
    """Say since when a script fails, and which releases are silent about it."""
    told = [answer for answer in found.answers if answer.state is not ReleaseState.UNKNOWN]
    between = {name for change in found.changes for name in change.silent}
    silent = [name for name in found.silent if name not in between]
    if not told:
        return "no release gave an answer"
    first = f"{told[0].state.value} in {told[0].name}"
    which = "release that answered" if found.silent else "release that was asked"
    if found.course in (Course.BROKEN, Course.FIXED):
        sentence = change_text(found.changes[0], found.course.value)
    elif found.course is Course.CAME_AND_WENT:
        later = [f"{change.state.value} {since_text(change)}" for change in found.changes]
        sentence = f"came and went: {', '.join([first, *later])}"
    elif len(told) == 1:
        sentence = first
    else:
        sentence = f"fails in {'every' if found.course is Course.ALWAYS else 'no'} {which}"
    return f"{sentence}; {no_answer(silent)}" if silent else sentence


def change_text(change: ReleaseChange, word: str) -> str:
    """Say between which two releases a script was broken, or fixed."""
    before = "works" if change.state is ReleaseState.FAILS else "fails"
    if not change.silent and not change.skipped:
        return f"{word} since {change.after} ({change.before} {before})"
    unheard = no_answer(change.silent) if change.silent else "those between them were not asked"
    return f"{word} between {change.before}, which {before}, and {change.after}, which {change.state.value}; {unheard}"


def since_text(change: ReleaseChange) -> str:
    """Say from which release on something holds."""
    if not change.silent and not change.skipped:
        return f"since {change.after}"
    return f"since {change.after} or a release between {change.before} and that"


def no_answer(names: Sequence[str]) -> str:
    """Say which releases gave no answer."""
    return f"{', '.join(names)} {'gives' if len(names) == 1 else 'give'} no answer"


def render_since(found: Since, console: Console) -> None:
    """Print the answer, and every release with what it says."""
    newest = found.answers[-1].state if found.answers else ReleaseState.UNKNOWN
    many = f"{len(found.answers)} release{'s' * (len(found.answers) != 1)}"
    console.print(
        f"[{STATES[newest]}]{newest.value.upper()}[/]  {escape(found.script)}: {escape(conclusion(found))}"
        f"  ({many}, {found.seconds:.0f} s)",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("asked", "torch", "answer", "seconds", "why"):
        table.add_column(title, overflow="fold", justify="right" if title == "seconds" else "left")
    for answer in found.answers:
        cells = (answer.asked, answer.torch, answer.state.value, seconds_cell(answer), answer.why)
        style = STATES[answer.state].removeprefix("bold ") if answer.state is not ReleaseState.WORKS else ""
        table.add_row(*(escape(harmless(cell)) for cell in cells), style=style)
    console.print(table)
    for hint in dict.fromkeys(answer.hint for answer in found.answers if answer.hint):
        console.print(f"hint: {escape(hint)}", highlight=False, soft_wrap=True)


def seconds_cell(answer: ReleaseAnswer) -> str:
    """Show how long a script ran, where it did."""
    return f"{answer.seconds:.1f}" if answer.torch else ""


def render_environments(entries: Sequence[ReleaseEnvironment], folder: str, console: Console) -> None:
    """Print the environments of a cache with their sizes."""
    total = sum(entry.size for entry in entries)
    many = f"{len(entries)} environment{'s' * (len(entries) != 1)}"
    console.print(f"{many} in {escape(folder)}, {size_text(total)}", highlight=False, soft_wrap=True)
    if not entries:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("torch", "python", "size", "made", "interpreter", "options of pip"):
        table.add_column(title, overflow="fold", justify="right" if title == "size" else "left")
    for entry in entries:
        cells = (entry.torch, entry.python, size_text(entry.size), entry.made, entry.interpreter)
        table.add_row(*(escape(harmless(cell)) for cell in (*cells, " ".join(entry.options))))
    console.print(table)


def size_text(size: float) -> str:
    """Print a number of bytes briefly."""
    unit = 0
    while size >= THOUSAND and unit < len(UNITS) - 1:
        size, unit = size / THOUSAND, unit + 1
    return f"{size:.3g} {UNITS[unit]}" if unit else f"{size:.0f} {UNITS[unit]}"


def since_data(found: Since) -> dict[str, Any]:
    """Return everything as plain data, ready for JSON."""
    derived = {"course": found.course.value, "conclusion": conclusion(found), "exit_code": found.exit_code}
    return {"schema": SCHEMA_VERSION, **plain_data(found), **derived}


def since_lines(found: Since) -> list[str]:
    """Return the answer and the table as Markdown, for a report of the failure."""
    lines = [f"{conclusion(found)}.", "", "| torch | answer | why |", "| --- | --- | --- |"]
    for answer in found.answers:
        why = harmless(answer.why).replace("|", "\\|")
        lines.append(f"| {answer.torch or answer.asked} | {answer.state.value} | {why} |")
    return lines
