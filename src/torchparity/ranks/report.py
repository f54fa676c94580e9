"""What ranks found together, as a person reads it: a row for each, then the one to look at; or why they had to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchparity.records import (
    APART,
    DIED,
    DIFFERS_CODE,
    FAILED,
    LATE,
    SILENT,
    STOPPED,
    UNREACHABLE,
    JointVerdict,
    Loss,
    Standing,
    Status,
    Verdict,
)
from torchparity.report.machine import as_data, write_data
from torchparity.report.terminal import SHOWN_LEAVES, STYLES, render, score_cell


def render_joint(joint: JointVerdict, console: Console, *, leaves: int = SHOWN_LEAVES) -> None:
    """Print what the ranks found: the answer, who brings it in, a row for each rank, and the worst rank's report."""
    worst = joint.verdicts[joint.worst]
    word = joint.status.value.upper()
    count = len(joint.verdicts)
    console.print(f"[{STYLES[joint.status]}]{word}[/]  {escape(worst.subject)} on {count} ranks")
    if not worst.runs:  # The ranks' graphs differ: nothing was compiled, and all of them say the same.
        for reason in worst.reasons:
            console.print(f"  {escape(reason)}", highlight=False, soft_wrap=True)
        return
    for sentence in blame(joint):
        console.print(f"  {sentence}", highlight=False, soft_wrap=True)
    console.print(table(joint))
    console.print(f"\nrank {joint.worst}", highlight=False, soft_wrap=True)
    render(worst, console, leaves=leaves)


def blame(joint: JointVerdict) -> list[str]:
    """Say which ranks differ by themselves, where that is known."""
    if joint.status is not Status.DIFFERS:
        return []
    names = " and ".join(f"rank {rank}" for rank in joint.guilty)
    verb = "differs" if len(joint.guilty) == 1 else "differ"
    if joint.guilty and joint.unaveraged:
        return [f"{names} {verb} in gradients, before the ranks average them"]
    if joint.guilty:
        return [f"{names} {verb} before anything is shared; where ranks share gradients, others may differ for that"]
    if joint.unaveraged:
        return ["no rank's own gradients differ before they are averaged: averaging them does"]
    return ["only what ranks share differs: which of them brings it in is not known"]


def table(joint: JointVerdict) -> Table:
    """Return a row for each rank."""
    result = Table(box=None, pad_edge=False, header_style="dim")
    result.add_column("rank", justify="right")
    for name in ("verdict", "worst leaf", "kind"):
        result.add_column(name, overflow="fold")
    result.add_column("score", justify="right")
    if joint.unaveraged:
        result.add_column("own gradients")
    for rank, verdict in enumerate(joint.verdicts):
        cells = [str(rank), verdict.status.value, *worst_cells(verdict)]
        if joint.unaveraged:
            cells.append(joint.unaveraged[rank].status.value)
        style = "" if verdict.status is Status.SAME else STYLES[verdict.status].removeprefix("bold ")
        result.add_row(*map(escape, cells), style=style)
    return result


def worst_cells(verdict: Verdict) -> tuple[str, str, str]:
    """Show the leaf that decides, or how the run ended."""
    if verdict.failure is not None:
        return verdict.failure.type, verdict.kind, ""
    if verdict.worst is None or verdict.status is Status.SAME:
        return "", "", ""
    return verdict.worst.path, verdict.worst.kind or verdict.worst.note, score_cell(verdict.worst)


def write_joint(joint: JointVerdict, path: Path) -> None:
    """Write every rank's verdict to a file: the worst one as a check alone would be, and all of them under `ranks`."""
    data: dict[str, Any] = as_data(joint.verdicts[joint.worst])
    data |= {"rank": joint.worst, "guilty_ranks": list(joint.guilty)}
    data["ranks"] = [as_data(verdict) for verdict in joint.verdicts]
    data["ranks_unaveraged"] = [as_data(verdict) for verdict in joint.unaveraged]
    write_data(data, path)


# --- ranks that did not get to the end ------------------------------------------------------------


def render_loss(loss: Loss, console: Console) -> None:
    """Print why the ranks ended before they had a verdict, and where each of them was."""
    status = Status.DIFFERS if loss.code == DIFFERS_CODE else Status.UNKNOWN
    console.print(f"[{STYLES[status]}]{status.value.upper()}[/]  the ranks did not get to the end")
    for sentence in why(loss):
        console.print(f"  {escape(sentence)}", highlight=False, soft_wrap=True)


def why(loss: Loss) -> list[str]:
    """Say what is wrong with which rank, and then what the others were doing."""
    if loss.kind == UNREACHABLE:
        return ["the store that the ranks talk through is gone: torchrun, or rank 0 where it served it, has ended"]
    troubled = [standing for standing in loss.standings if standing.trouble]
    others = [standing for standing in loss.standings if not standing.trouble]
    said = [trouble(standing, loss.limit) for standing in troubled]
    if not troubled:
        said.append("the whole check has taken longer than --timeout allows")
    return said + [f"rank {standing.rank} {doing(standing)}" for standing in others]


def trouble(standing: Standing, limit: float) -> str:
    """Say what is wrong with one rank."""
    rank, where = f"rank {standing.rank}", place(standing)
    cause = f" ({standing.detail})" if standing.detail else ""
    words = {
        DIED: f"{rank} died{cause} in {place(standing, 'last seen at')}",
        SILENT: f"{rank} has not answered for {limit:g} s, and gives no sign of life: it was in {where}",
        LATE: f"{rank} has not answered for {limit:g} s: it is in {where}",
        STOPPED: f"{rank} was told to stop (SIGTERM) in {where}",
        APART: f"{rank} is at '{standing.detail}', where other ranks are not",
        FAILED: f"{rank} failed, and the others wait for it: {standing.detail}",
    }
    return words[standing.trouble]


def doing(standing: Standing) -> str:
    """Say what a rank did that nothing is wrong with."""
    return f"waited for the others after '{standing.phase}'" if standing.waits else f"was in {place(standing)}"


def place(standing: Standing, at: str = "at") -> str:
    """Say where a rank was: in which run, and at which line."""
    if not standing.phase:
        return "its start: it has never answered"
    line = f", {at} {standing.line}" if standing.line else ""
    return f"'{standing.phase}'{line}"
