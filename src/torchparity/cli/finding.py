"""`torchparity locate`, `blame`, `passes` and `explain`: which operation, which stage, which pass, what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import torchparity
from torchparity.cli.options import (
    MODEL,
    OUTPUT,
    Asked,
    Json,
    Memory,
    Named,
    Quiet,
    Timeout,
    Trust,
    What,
    takes_request,
)
from torchparity.cli.outputs import printing
from torchparity.cli.progress import ProgressLine, Watcher
from torchparity.cli.subjects import case_or_target, limits_of, named, writable
from torchparity.errors import UsageError
from torchparity.records import SCHEMA_VERSION, Status
from torchparity.records.wire import plain_data
from torchparity.report.findings import render_blame, render_located, render_passes
from torchparity.report.machine import write_data
from torchparity.report.story import render_story, story_data


@takes_request
def locate(
    what: What,
    asked: Asked,
    nodes: Annotated[int, typer.Option("--nodes", help="Operations to show.")] = 12,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    trust: Trust = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Name the operation that introduces the error, with its source line; usually in one compilation.

    Exit code: 0 found, 2 usage, 3 nothing fails, 125 not found.
    """
    json = writable(json)
    found = look(torchparity.locate, what, asked, limits_of(timeout, memory), quiet=quiet, trust=trust)
    render_located(found, printing(), nodes=nodes)
    write(found, json)
    raise typer.Exit(0 if found.culprit is not None else 125)


@takes_request
def blame(
    what: What,
    asked: Asked,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    trust: Trust = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Name the stage of the compiler, and the pass or setting in it; two runs show it.

    Exit code: 0 found, 2 usage, 3 nothing fails, 125 not found.
    """
    json = writable(json)
    found = look(torchparity.blame, what, asked, limits_of(timeout, memory), quiet=quiet, trust=trust)
    render_blame(found, printing())
    write(found, json)


@takes_request
def passes(
    target: Named,
    asked: Asked,
    own: Annotated[
        str | None, typer.Option("--passes", help="A list of your own passes, functions on a graph: file.py:name.")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", help="Steps of the optimizer.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="Show passes that changed nothing, too.")] = False,
    json: Json = None,
) -> None:
    """Compare the numbers before and after every pass of inductor, or after each of your own.

    Exit code: 0 same, 1 a pass changes the numbers, 2 usage, 125 unknown.
    """
    asked.request("passes")
    wanted = named(target, asked.device)
    from torchparity.run.target import find_target

    json = writable(json)
    functions = None
    if own is not None:
        functions, _ = find_target(own)
        functions = list(functions) if isinstance(functions, list | tuple) else [functions]
        if not all(callable(function) for function in functions):
            raise UsageError(f"{own} is not a list of functions", hint="name a list of functions on a GraphModule")
    subject = wanted.load()
    report = torchparity.check_passes(subject, passes=functions, iterations=iterations, **asked.options)
    render_passes(report, printing(), everything=everything)
    write(report, json)
    raise typer.Exit({Status.SAME: 0, Status.DIFFERS: 1, Status.UNKNOWN: 125}[report.status])


@takes_request
def explain(
    target: Named,
    asked: Asked,
    calls: Annotated[int, typer.Option("--calls", help="Calls with each of the inputs.", rich_help_panel=MODEL)] = 2,
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", help="Call it also with so many rows (may be repeated).", rich_help_panel=MODEL),
    ] = None,
    guards: Annotated[bool, typer.Option("--guards", help="Show every guard.", rich_help_panel=OUTPUT)] = False,
    inlined: Annotated[
        bool, typer.Option("--inlined", help="Show every function that was inlined.", rich_help_panel=OUTPUT)
    ] = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Tell what the compiler did with a model: frames, inlined functions, graph breaks, subgraphs, guards, recompiles.

    Exit code: 0 told, 125 told up to where the model or the compiler raised, 2 usage.
    """
    json = writable(json)
    asked.request("explain")
    subject = named(target, asked.device).load()
    with ProgressLine(quiet=quiet) as progress:
        story = torchparity.explain(subject, calls=calls, batches=batch or (), progress=progress, **asked.options)
    render_story(story, printing(), guards=guards, inlined=inlined)
    if json is not None:
        write_data(story_data(story), json)
    raise typer.Exit(story.exit_code)


def look(verb: Any, what: str, asked: Asked, limits: Any, *, quiet: bool, trust: bool) -> Any:
    """Ask a verb about a bundle or a model."""
    with Watcher(quiet=quiet) as watcher:
        subject = case_or_target(what, asked.device, trust=trust)
        return verb(subject, limits=limits, listen=watcher.say, **asked.options)


def write(found: Any, path: Path | None) -> None:
    """Write a finding as JSON, where that was asked for."""
    if path is not None:
        write_data({"schema": SCHEMA_VERSION, **plain_data(found)}, path)
