"""`torchparity sweep`, `baseline` and `query`: many models in many ways, known failures, what the store says."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchparity.cli.live import SweepWatcher
from torchparity.cli.options import OUTPUT, Json, Junit, Quiet, Workers
from torchparity.cli.outputs import printing
from torchparity.cli.subjects import at_least_one, writable
from torchparity.errors import UsageError
from torchparity.fleet.cells import GUESS_SECONDS, options_text
from torchparity.fleet.store import Judged, Store
from torchparity.fleet.store import query as asked_of
from torchparity.records import SweepCell, SweepSummary
from torchparity.report.exchange import github_text, lines_text, write_sarif, write_sweep_junit
from torchparity.report.machine import write_whole
from torchparity.report.sweep import counts, headline, markdown_text, write_sweep
from torchparity.workers.pool import default_workers

if TYPE_CHECKING:
    pass

SHOWN = 25
# How long a new line of a baseline is accepted, in days, unless one says otherwise.
ACCEPTED_DAYS = 90

Suite = Annotated[Path | None, typer.Argument(help="A suite: a TOML or a Python file.", show_default=False)]
Ready = Annotated[
    str | None, typer.Option("--suite", help="A ready-made suite: transformers, timm, torchvision.", show_default=False)
]
Out = Annotated[Path | None, typer.Option("--out", help="The folder of the sweep.", show_default=False)]
Resume = Annotated[
    Path | None, typer.Option("--resume", help="Go on with the sweep in this folder.", show_default=False)
]
Again = Annotated[
    list[str] | None,
    typer.Option("--again", help="With --resume: judge again what came out so (unknown, differs).", show_default=False),
]
Repeat = Annotated[int, typer.Option("--repeat", help="Check every cell so often, to see flakes.")]
Python = Annotated[
    list[Path] | None,
    typer.Option("--python", help="An interpreter; twice for twins: what changed between them.", show_default=False),
]
RayAt = Annotated[str | None, typer.Option("--ray", help="A Ray cluster: its address, or auto.", show_default=False)]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", help="Known failures; baseline.toml in the folder by default.", show_default=False),
]
DiagnoseNew = Annotated[int, typer.Option("--diagnose-new", help="Diagnose so many of the worst that are new.")]
SinceReleases = Annotated[
    list[str] | None,
    typer.Option("--since", help="A release of torch to ask about new failures; repeatable.", show_default=False),
]
Listing = Annotated[bool, typer.Option("--list", help="Say what would run and how long, and run nothing.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", help="Write a SARIF file.", rich_help_panel=OUTPUT)]
Summary = Annotated[Path | None, typer.Option("--summary", help="Add Markdown to this file.", rich_help_panel=OUTPUT)]
Format = Annotated[str | None, typer.Option("--format", help="github: annotations on stdout.", rich_help_panel=OUTPUT)]


def sweep(
    suite: Suite = None,
    ready: Ready = None,
    out: Out = None,
    resume: Resume = None,
    again: Again = None,
    repeat: Repeat = 1,
    workers: Workers = None,
    python: Python = None,
    ray: RayAt = None,
    baseline: Baseline = None,
    diagnose_new: DiagnoseNew = 0,
    since: SinceReleases = None,
    listing: Listing = False,
    json: Json = None,
    junit: Junit = None,
    sarif: Sarif = None,
    summary: Summary = None,
    format: Format = None,
    quiet: Quiet = False,
) -> None:
    """Check many models in many ways, each in a process of its own; what is known is kept as it comes.

    Exit code: 0 nothing new, 1 something differs that the baseline does not accept, 2 usage, 125 no answer that it does
    not accept, 130 interrupted (--resume goes on).
    """
    at_least_one(workers=workers, repeat=repeat)
    if format not in (None, "github"):
        raise UsageError(f"there is no format {format!r}", hint="--format github prints annotations")
    if again and (resume is None or not set(again) <= {"same", "differs", "unknown"}):
        raise UsageError(
            "--again takes same, differs or unknown, with --resume", hint="as in --resume DIR --again unknown"
        )
    json, junit, sarif = writable(json), writable(junit), writable(sarif)
    from torchparity.verbs import sweep as verb

    if listing:
        cells, name, _ = verb.cells_in(suite, ready)
        list_cells(cells, name, out, workers or default_workers())
        return
    if (out is None) == (resume is None):
        raise UsageError("a sweep needs a folder", hint="give --out FOLDER for a new one, or --resume FOLDER")
    folder = resume or out
    assert folder is not None
    watcher = SweepWatcher(quiet=quiet)
    with watcher:
        found = verb.sweep(
            suite, out=folder, ready=ready, resume=resume is not None, again=again or (), repeat=repeat,
            workers=workers, pythons=python or (), ray=ray, baseline=baseline, diagnose_new=diagnose_new,
            since=since or (), hear=watcher.hear,
        )  # fmt: skip
    write_formats(found, json=json, junit=junit, sarif=sarif, summary=summary)
    if format == "github":
        sys.stdout.write(github_text(found))
    tell(found, write_sweep(folder, found))
    raise typer.Exit(found.exit_code)


def write_formats(
    found: SweepSummary, *, json: Path | None, junit: Path | None, sarif: Path | None, summary: Path | None
) -> None:
    """Write what a sweep found in the formats that were asked for."""
    if json is not None:
        write_whole(lines_text(found), json, option="--json")
    if junit is not None:
        write_sweep_junit(found, junit)
    if sarif is not None:
        write_sarif(found, sarif)
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(markdown_text(found))


def list_cells(cells: list[Any], name: str, out: Path | None, workers: int) -> None:
    """Print what would run, and a guess of how long it takes: as it was seen before, where it was."""
    seen: dict[str, tuple[float, int]] = {}
    if out is not None and out.is_dir():
        store = Store(out)
        seen = store.expected()
        store.close()
    total = 0.0
    for cell in cells:
        seconds = seen.get(cell.key, (GUESS_SECONDS, 0))[0]
        total += seconds
        print(f"{cell.title}\t{options_text(cell.options)}\t{seconds:.0f} s{'' if cell.key in seen else ' (a guess)'}")
    print(f"{len(cells)} cells of {name}, about {total / workers / 60:.0f} min with {workers} workers", file=sys.stderr)


def tell(found: SweepSummary, page: Path) -> None:
    """Say what a sweep found: the failures that are not accepted, then the counts."""
    console = printing()
    alike: dict[tuple[str, ...], list[SweepCell]] = {}
    for cell in found.failing:
        # What raises, or cannot be loaded, often does so everywhere; where numbers differ, each model is told.
        alone = () if cell.status == "unknown" or cell.kind == "raises" else (str(cell.id),)
        alike.setdefault((cell.baseline, cell.status, cell.kind, cell.reason, *alone), []).append(cell)
    for cells in list(alike.values())[:SHOWN]:
        console.print(failing_line(cells, dated=not found.changes), markup=False, highlight=False, soft_wrap=True)
    if len(alike) > SHOWN:
        rest = sum(len(cells) for cells in list(alike.values())[SHOWN:])
        console.print(f"... and {rest} more", highlight=False)
    for cell in found.flaky:
        console.print(f"flaky    {cell.title}  {cell.options}", markup=False, highlight=False, soft_wrap=True)
    for change in found.changes:
        if change.word != "same":
            line = f"{change.word:13} {change.title}  {change.options}: {change.before} -> {change.after}"
            line += f"; {change.since}" if change.since else ""
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in found.gone:
        console.print(f"gone     {line}", markup=False, highlight=False, soft_wrap=True)
    told = ", ".join(f"{count} {status}" for status, count in counts(found) if count)
    console.print(f"{headline(found)} ({told})", markup=False, highlight=False, soft_wrap=True)
    console.print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)


def failing_line(cells: list[SweepCell], *, dated: bool) -> str:
    """Return a line for cells that fail alike: the first, how many others there are, why, and since when."""
    cell = cells[0]
    others = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    word = f"{cell.status} {cell.kind}".strip()
    since = f"; {cell.finding['since']}" if dated and cell.finding.get("since") else ""
    return f"{cell.baseline:8} {word:18} {cell.title}  {cell.options}{others}: {cell.reason}{since}"


def baseline(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    update: Annotated[bool, typer.Option("--update", help="Accept what the last sweep has found.")] = False,
    file: Baseline = None,
    until: Annotated[str | None, typer.Option("--until", help="Accept new lines until this day: 2027-01-31.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why new lines are accepted.")] = "",
) -> None:
    """Hold the last sweep of a folder against the known failures; with --update, accept what it has found.

    Exit code: 0 nothing new (or accepted), 1 something differs that is not accepted, 2 usage, 125 no answer.
    """
    from torchparity.verbs.sweep import update_baseline

    comparison, place = update_baseline(folder, baseline=file, update=update, until=day(until), reason=reason)
    console = printing()

    def lines(word: str, cells: tuple[Judged, ...]) -> None:
        for cell in cells:
            text = f"{word:8} {cell.cell.title}  {options_text(cell.cell.options)}: {cell.kind or cell.status}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    for word in ("new", "changed", "expired"):
        lines(word, getattr(comparison, word))
    for entry in comparison.gone:
        console.print(f"gone     {entry.target}  {entry.options}: {entry.kind}", markup=False, highlight=False)
    told = f"{len(comparison.failing)} not accepted, {len(comparison.known)} known, {len(comparison.gone)} gone"
    done = f"; written to {place}" if update else f"; --update accepts them ({place})" if comparison.failing else ""
    console.print(told + done, markup=False, highlight=False, soft_wrap=True)
    words = {cell.status for cell in comparison.failing}
    raise typer.Exit(0 if update or not words else 1 if "differs" in words else 125)


def day(text: str | None) -> date:
    """Return a day that was given, or the one until which a new line is accepted."""
    if text is None:
        return datetime.now(UTC).date() + timedelta(days=ACCEPTED_DAYS)
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no day", hint="write it as 2027-01-31") from error


def query(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    question: Annotated[str, typer.Argument(help="SQL: select status, count(*) from cells group by status")],
    names: Annotated[bool, typer.Option("--names", help="Print the names of the columns first.")] = False,
) -> None:
    """Ask the store of a sweep, read-only; rows come as lines, values with tabs between them.

    The tables are cells, verdicts, leaves, findings, environments and runs of the last sweep; all_cells and so on hold
    those of every sweep in the folder.
    """
    columns, rows = asked_of(folder, question)
    for row in [tuple(columns), *rows] if names else rows:
        print("\t".join("" if value is None else str(value).replace("\t", " ").replace("\n", " ") for value in row))
