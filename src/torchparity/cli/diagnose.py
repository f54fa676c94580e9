"""`torchparity diagnose` and `report`: the whole way from a model to the page, and the page again."""

from __future__ import annotations

import contextlib
import json as json_format
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import torchparity
from torchparity.cli.cases import limits_of
from torchparity.cli.minify import Watcher, seconds_of
from torchparity.cli.options import (
    Autocast,
    Backend,
    Backward,
    Budget,
    Device,
    Dynamic,
    Memory,
    Quiet,
    Timeout,
    Train,
    What,
    Workers,
)
from torchparity.cli.settings import read_setting
from torchparity.errors import UsageError
from torchparity.execute.outcome import Limits
from torchparity.records import Diagnosis, ProgressCallback, StageProgress, Status, Verdict
from torchparity.report.lines import five_lines
from torchparity.report.machine import write_data
from torchparity.report.page import FACTS, moved, read_run, run_data, runs_below, write_index, write_page
from torchparity.report.terminal import STYLES

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


def diagnose(
    what: What,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of this run; runs/DATE-NAME by default.")] = None,
    budget: Budget = None,
    workers: Workers = None,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    backend: Backend = "inductor",
    mode: Annotated[str | None, typer.Option("--mode", help="For a model: a torch.compile mode.")] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="For a model: AREA.KEY=VALUE of the compiler.")
    ] = None,
    train: Train = False,
    backward: Backward = False,
    autocast: Autocast = None,
    dynamic: Dynamic = None,
    device: Device = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write everything to this file; alone: print it, not the five lines.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Find out everything: what differs, which operation, which stage, the smallest script; and make a page of it.

    Exit code: 0 same, 1 differs, 2 usage, 125 unknown, 130 interrupted (what was found is kept).
    """
    if json is not None and json.is_dir():
        raise UsageError(f"{json} is a folder", hint="give --json the name of a file")
    if json is not None and not json.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {json.parent} to write {json.name} to", hint="make it first")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} is too few", hint="give at least 1")
    seconds = seconds_of(budget) if budget is not None else None
    limits = limits_of(timeout, memory)
    with StageWatcher(quiet=quiet) as watcher:
        subject = case_or_model(what, device)
        how: dict[str, Any] = {"backend": backend, "mode": mode, "dynamic": dynamic, "train": train}
        how |= {"autocast": autocast, "backward": True if backward else None}
        how |= {"config": dict(map(read_setting, config or []))}
        check_with = None
        if isinstance(subject, torchparity.Case):  # It says how it is compiled; what is asked for besides is refused.
            how = {name: value for name, value in how.items() if value not in (None, False, {}, "inductor")}
        else:
            check_with = apart(what, how, device, limits_of(min(timeout, seconds or timeout), memory))
        folder = folder_for(out, subject)
        found = torchparity.diagnose(
            subject,
            out=folder,
            budget=seconds,
            workers=workers,
            limits=limits,
            check_with=check_with,
            listen=watcher.hear,
            **how,
        )
    if json is not None and str(json) != STDOUT:
        write_data(run_data(found), json)
    if json is not None and str(json) == STDOUT:
        print(json_format.dumps(run_data(found), indent=2, allow_nan=False))
    else:
        tell(found, Console())
    raise typer.Exit(found.exit_code)


def report(
    runs: Annotated[Path, typer.Argument(help="The folder of a run, or a folder that holds runs.")],
    json: Annotated[Path | None, typer.Option("--json", help="Write what the page is made of to this file.")] = None,
) -> None:
    """Make the page of a run again from its JSON, or the index of many runs."""
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


def case_or_model(what: str, device: str | None) -> torchparity.Case | torchparity.Subject:
    """Return the case of a bundle, or the model that a target names."""
    if (Path(what) / FACTS).is_file():
        raise UsageError(f"{what} is a run", hint=f"`torchparity report {what}` shows it; its graph is {what}/graph")
    if Path(what).is_dir():
        from torchparity.repro.bundle import located

        return torchparity.read_bundle(located(Path(what)))
    if ":" not in what:
        hint = "name a folder that `capture` wrote, or file.py:name"
        raise UsageError(f"{what} is neither a bundle nor a model", hint=hint)
    from torchparity.cli.target import load_subject

    return replace(load_subject(what, device=device), name=what)


def apart(
    target: str, how: dict[str, Any], device: str | None, limits: Limits
) -> Callable[[ProgressCallback], Verdict]:
    """Return a check in another process: what kills the compiler there does not kill the diagnosis."""

    def check(progress: ProgressCallback) -> Verdict:
        from torchparity.cli.isolated import check_elsewhere

        return check_elsewhere(target, how, device=device, limits=limits, progress=progress)

    return check


def folder_for(out: Path | None, subject: torchparity.Case | torchparity.Subject) -> Path:
    """Return the folder of a run: the one that was named if it is free, else one by the date and the name."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} is not an empty folder", hint="name another folder for this run")
        return out
    name = subject.name if isinstance(subject, torchparity.Case) else subject.title()
    plain = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:60].strip("._-") or "model"
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
