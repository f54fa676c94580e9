"""`torchparity diagnose` and `report`: the whole way from a model to the page, and the page again."""

from __future__ import annotations

import contextlib
import json as json_format
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

import torchparity
from torchparity.cli.options import Asked, Budget, Memory, Quiet, Timeout, Trust, What, Workers, takes_request
from torchparity.cli.outputs import printing
from torchparity.cli.progress import Watcher
from torchparity.cli.subjects import at_least_one, case_or_target, limits_of, seconds_of, writable
from torchparity.errors import UsageError
from torchparity.records import Diagnosis, StageProgress, Status
from torchparity.records.wire import plain_data
from torchparity.report.hunt import hunt_data, write_hunt
from torchparity.report.lines import five_lines
from torchparity.report.machine import write_data
from torchparity.report.page import FACTS, moved, read_run, run_data, runs_below, write_index, write_page
from torchparity.report.sweep import write_sweep
from torchparity.report.terminal import STYLES
from torchparity.verbs.report import hunt_in, sweep_in

if TYPE_CHECKING:
    from torchparity.repro.case import Case
    from torchparity.run.target import Target

RUNS = Path("runs")
# What `--json` without a file means.
STDOUT = "-"


def with_json(arguments: list[str]) -> list[str]:
    """Return the arguments of a command line in which `diagnose ... --json` alone names the standard output."""
    if "diagnose" not in arguments[:1]:
        return arguments
    following = [*arguments[1:], "--"]
    return [
        f"--json={STDOUT}" if word == "--json" and after.startswith("-") and after != STDOUT else word
        for word, after in zip(arguments, following, strict=True)
    ]


@takes_request
def diagnose(
    what: What,
    asked: Asked,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of this run; runs/DATE-NAME by default.")] = None,
    budget: Budget = None,
    workers: Workers = None,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    trust: Trust = False,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write everything to this file; alone: print it, not the five lines.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Find out everything: what differs, which operation, which stage, the smallest script; and make a page of it.

    Exit code: 0 same, 1 differs, 2 usage, 125 unknown, 130 interrupted (what was found is kept).
    """
    json = writable(json)
    at_least_one(workers=workers)
    seconds = seconds_of(budget)
    with StageWatcher(quiet=quiet) as watcher:
        subject = case_or_target(what, asked.device, trust=trust)
        found = torchparity.diagnose(
            subject,
            out=folder_for(out, subject),
            budget=seconds,
            workers=workers,
            limits=limits_of(timeout, memory),
            listen=watcher.hear,
            **asked.options,
        )
    if json is not None and str(json) != STDOUT:
        write_data(run_data(found), json)
    if json is not None and str(json) == STDOUT:
        print(json_format.dumps(run_data(found), indent=2, allow_nan=False))
    else:
        tell(found, printing())
    raise typer.Exit(found.exit_code)


def report(
    runs: Annotated[Path, typer.Argument(help="The folder of a run, a hunt or a sweep, or one that holds runs.")],
    json: Annotated[Path | None, typer.Option("--json", help="Write what the page is made of to this file.")] = None,
) -> None:
    """Make the page of a run, of a hunt or of a sweep again from what it has left, or the index of many runs."""
    swept = sweep_in(runs)
    if swept is not None:
        print(write_sweep(runs, swept))
        if json is not None:
            write_data(plain_data(swept), json)
        return
    hunted = hunt_in(runs)
    if hunted is not None:
        print(write_hunt(runs, hunted))
        if json is not None:
            write_data(hunt_data(hunted), json)
        return
    if (runs / FACTS).exists():
        data = moved(read_run(runs), runs)
        print(write_page(data, runs))
        if json is not None:
            write_data(data, json)
        return
    if json is not None:
        raise UsageError(f"{runs} is not one run", hint="--json writes one run; name its folder")
    if not runs_below(runs):
        raise UsageError(
            f"{runs} holds no run", hint="name a folder that `torchparity diagnose` wrote, or one of those"
        )
    for folder in runs_below(runs):
        with contextlib.suppress(UsageError):  # The index says which of them cannot be read.
            write_page(moved(read_run(folder), folder), folder)
    print(write_index(runs))


def folder_for(out: Path | None, subject: Case | Target) -> Path:
    """Return the folder of a run: the one that was named if it is free, else one by the date and the name."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} is not an empty folder", hint="name another folder for this run")
        return out
    plain = re.sub(r"[^\w.-]+", "_", subject.name, flags=re.ASCII)[:60].strip("._-") or "model"
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{plain}"
    taken = 1
    while (RUNS / (stem if taken == 1 else f"{stem}-{taken}")).exists():
        taken += 1
    return RUNS / (stem if taken == 1 else f"{stem}-{taken}")


class StageWatcher(Watcher):
    """Progress of a diagnosis on stderr: the stage of how many, what it does, about how long it will still take."""

    stage = ""

    def __enter__(self) -> StageWatcher:
        super().__enter__()
        return self

    def hear(self, event: StageProgress) -> None:
        """Show where the diagnosis is; where there is no terminal, one line for each stage."""
        left = f", about {event.left:.0f} s left" if event.left is not None else ""
        doing = f": {event.doing}" if event.doing else ""
        if self.spinner is not None:
            self.say(f"{event.number} of {event.stages} {event.stage}{doing}{left}")
        elif event.stage != self.stage:
            self.say(f"{event.number} of {event.stages} {event.stage}{left}")
        self.stage = event.stage


def tell(found: Diagnosis, console: Console) -> None:
    """Print the five lines."""
    for number, (word, text) in enumerate(five_lines(found)):
        style = STYLES[found.status] if number == 0 else "dim"
        console.print(f"[{style}]{word:<7}[/]  {escape(text)}", highlight=False, soft_wrap=True)
    if found.interrupted:
        console.print("[dim]interrupted; what was found is kept[/]", highlight=False)
    elif found.status is Status.SAME:
        console.print("[dim]nothing to find[/]", highlight=False)
