"""Where a graph goes wrong, who is to blame, and what each pass did, as a person reads it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchparity.records import THROUGH, Blame, Located, NodeError, PassesReport, Status, Trial

SHOWN_NODES = 12
SHOWN_LINES = 24
# So many of the kernels that are blamed are named.
KERNELS = 3
HOW = {
    "introduced": "introduces the error",
    "propagated": "is the first with a wrong result",
    "gradient": "has a wrong gradient",
    "raises": "makes the compiler fail",
    "refused": "is refused by the model itself, and not when compiled",
    "fusion": "is wrong only when compiled together with others",
}
STAGES = {
    "dynamo": "Dynamo, which traces Python into graphs",
    "aot_autograd": "AOTAutograd, which makes forward and backward graphs",
    "decomposition": "a decomposition",
    "partitioner": "AOTAutograd's partitioner",
    "pre_grad_passes": "a pass of inductor before autograd",
    "joint_graph_passes": "a pass of inductor over the joint graph",
    "post_grad_passes": "a pass of inductor after autograd",
    "lowerings": "inductor's lowering",
    "codegen": "the code that inductor writes",
    "inductor": "inductor, in a part that cannot be left out",
    "backend": "the backend itself",
    "between": "what lies between the graphs",
    "guards": "guards: a graph made for one call serves another",
}


def short_line(line: str) -> str:
    """Return a source line with the files' names instead of their paths."""
    parts = []
    for part in line.split(THROUGH) if line else ():
        place, _, code = part.partition(": ")
        file, _, rest = place.partition(":")
        parts.append(f"{Path(file).name}:{rest}" + (f": {code}" if code else ""))
    return THROUGH.join(parts)


def score(value: float | None, kind: str) -> str:
    """Return an error in units of the noise, and its kind where it is no rounding."""
    if value is None:
        return "-"
    return f"{value:.3g} {kind}".strip() if value or not kind else kind


def render_located(found: Located, console: Console, *, nodes: int = SHOWN_NODES) -> None:
    """Print where a graph goes wrong: the culprit, its line, and what stands around it."""
    spent = f"({found.compiles} compilation{'s' * (found.compiles != 1)}, {found.seconds:.0f} s)"
    if found.culprit is None:
        console.print(f"[bold yellow]NOT FOUND[/]  {escape(found.subject)} differs in {found.kind}  {spent}")
        console.print("  no operation of it is wrong by itself, and none could be looked at without the failure going")
        return
    culprit = found.culprit
    how = HOW[found.how]
    console.print(f"[bold red]{escape(culprit.operation)}[/] {how} ({escape(found.kind)})  {spent}", highlight=False)
    if culprit.line:
        console.print(f"  {escape(short_line(culprit.line))}", highlight=False)
    if found.fusion:
        names = ", ".join(node.name for node in found.fusion)
        console.print(f"  needs fusion of these: {escape(names)}", highlight=False)
    shown = around(found, nodes)
    if not shown:
        return
    table = Table(
        box=None,
        pad_edge=False,
        header_style="dim",
        caption=f"in units of the noise; over {found.threshold:g} is no rounding",
        caption_justify="left",
    )
    for title in ("", "node", "op", "introduced", "propagated", "source"):
        table.add_column(title, overflow="fold", justify="right" if title.endswith("ed") else "left")
    for node in shown:
        table.add_row(
            ">" if node == culprit else "",
            escape(node.name),
            escape(node.operation),
            score(node.introduced, node.introduced_kind),
            score(node.propagated, node.propagated_kind),
            escape(short_line(node.line).partition(": ")[0]),
            style="red" if node.introduced_kind else "",
        )
    console.print(table)
    if len(found.nodes) > len(shown):
        rest = len(found.nodes) - len(shown)
        console.print(f"  and {rest} more operations (--nodes N, --json FILE)", highlight=False)


def around(found: Located, count: int) -> list[NodeError]:
    """Return the nodes worth a row: those that introduce something, and the nearest before and after the culprit."""
    assert found.culprit is not None
    place = found.culprit.place
    ranked = sorted(found.nodes, key=lambda node: (not node.introduced_kind, abs(node.place - place)))
    return sorted(ranked[:count], key=lambda node: node.place)


def render_blame(found: Blame, console: Console) -> None:
    """Print who is to blame, what makes the failure go away, and the two runs that show it."""
    what = STAGES.get(found.stage, found.stage)
    name = f": [bold]{escape(found.part)}[/]" if found.part else ""
    console.print(f"[bold red]BLAME[/]  {what}{name}  ({found.queries} runs, {found.seconds:.0f} s)", highlight=False)
    for key, value in found.switch.items():
        console.print(f"  goes away with {escape(key)} = {escape(repr(value))}", highlight=False)
    for kernel in found.kernels[:KERNELS]:
        lines = "; ".join(short_line(line) for line in kernel.lines)
        console.print(
            f"  in the kernel {escape(kernel.name)}{escape(f', for {lines}' if lines else '')}", highlight=False
        )
    rows = [("fails", found.failing), ("passes", found.passing)]
    for word, trial in rows:
        if trial is not None:
            console.print(f"  {word:<7} {escape(trial.change)}{told(trial)}", highlight=False)


def blame_text(found: Blame) -> str:
    """Return who is to blame in one sentence, and what makes the failure go away."""
    what = STAGES.get(found.stage, found.stage)
    text = f"{what[0].upper()}{what[1:]}" + (f": `{found.part}`" if found.part else "")
    if found.kernels:
        text += f", in the kernel{'s' if len(found.kernels) > 1 else ''} {kernel_names(found)}"
    if found.passing is not None:
        text += f". It passes with this change: {found.passing.change}"
    return text + "."


def kernel_names(found: Blame) -> str:
    """Return the names of the first kernels that are blamed."""
    names = [f"`{kernel.name}`" for kernel in found.kernels[:KERNELS]]
    return ", ".join(names) + (f" and {len(found.kernels) - KERNELS} more" if len(found.kernels) > KERNELS else "")


def told(trial: Trial) -> str:
    """Return how a trial ended, where that is worth a word."""
    return f": {trial.kind}" if trial.kind else ""


def render_passes(report: PassesReport, console: Console, *, everything: bool = False) -> None:
    """Print what the passes did to the numbers: the first wrong one with its change, and a table of the others."""
    changed = sum(entry.changed for entry in report.passes)
    style = {Status.SAME: "bold green", Status.DIFFERS: "bold red", Status.UNKNOWN: "bold yellow"}[report.status]
    console.print(
        f"[{style}]{report.status.value.upper()}[/]  {len(report.passes)} passes, {changed} changed a graph"
        f"  ({report.seconds:.1f} s)",
        highlight=False,
    )
    first = report.first
    if first is not None:
        where = f" at {escape(first.leaf)}" if first.leaf else ""
        console.print(f"  {escape(first.name)} ({first.stage}) changes the numbers", highlight=False)
        console.print(f"  {first.kind}{where}, score {first.score:.3g}", highlight=False)
        lines = first.difference.splitlines()
        for line in lines[:SHOWN_LINES]:
            console.print(f"    {escape(line)}", highlight=False, style="dim")
        if len(lines) > SHOWN_LINES:
            console.print(f"    and {len(lines) - SHOWN_LINES} more lines (--json FILE)", highlight=False)
    shown = [entry for entry in report.passes if everything or entry.status is not Status.SAME or entry.changed]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("stage", "pass", "changed", "verdict", "score"):
        table.add_column(title, overflow="fold")
    for entry in shown:
        changes = "yes" if entry.changed else ""
        verdict = entry.kind or entry.status.value
        table.add_row(entry.stage, escape(entry.name), changes, verdict, f"{entry.score:.3g}" if changes else "")
    if shown:
        console.print(table)
    for note in dict.fromkeys(report.notes):
        console.print(f"  note: {escape(note)}", highlight=False)
