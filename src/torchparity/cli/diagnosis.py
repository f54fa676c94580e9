"""`torchparity locate`, `blame` and `passes`: which operation, which stage, which pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import torchparity
from torchparity.cli.cases import limits_of
from torchparity.cli.minify import Watcher
from torchparity.cli.options import (
    Autocast,
    Backend,
    Backward,
    Device,
    Dynamic,
    Json,
    Memory,
    PlainBackward,
    PlainDevice,
    PlainDynamic,
    PlainTrain,
    Quiet,
    Seed,
    Target,
    Timeout,
    Train,
    What,
)
from torchparity.errors import UsageError
from torchparity.execute.pool import Pool
from torchparity.records import SCHEMA_VERSION, Status
from torchparity.report.findings import render_blame, render_located, render_passes
from torchparity.report.machine import plain_data, write_data


def locate(
    what: What,
    nodes: Annotated[int, typer.Option("--nodes", help="Operations to show.")] = 12,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    backend: Backend = "inductor",
    train: Train = False,
    backward: Backward = False,
    autocast: Autocast = None,
    dynamic: Dynamic = None,
    device: Device = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Name the operation that introduces the error, with its source line; usually in one compilation.

    Exit code: 0 found, 2 usage, 125 not found.
    """
    how: dict[str, Any] = {"backend": backend, "train": train, "backward": True if backward else None}
    how |= {"autocast": autocast, "dynamic": dynamic}
    limits = limits_of(timeout, memory)
    with Watcher(quiet=quiet) as watcher, Pool(workers=1) as pool:
        failure = failing(what, watcher, device)
        found = torchparity.locate(failure, pool=pool, limits=limits, listen=watcher.say, **how)
    render_located(found, Console(), nodes=nodes)
    write(found, json)
    raise typer.Exit(0 if found.culprit is not None else 125)


def blame(
    what: What,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    backend: Backend = "inductor",
    train: Train = False,
    backward: Backward = False,
    autocast: Autocast = None,
    dynamic: Dynamic = None,
    device: Device = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Name the stage of the compiler, and the pass or setting in it; two runs show it.

    Exit code: 0 found, 2 usage.
    """
    how: dict[str, Any] = {"backend": backend, "train": train, "backward": True if backward else None}
    how |= {"autocast": autocast, "dynamic": dynamic}
    limits = limits_of(timeout, memory)
    with Watcher(quiet=quiet) as watcher, Pool(workers=1) as pool:
        failure = failing(what, watcher, device)
        found = torchparity.blame(failure, pool=pool, limits=limits, listen=watcher.say, **how)
    render_blame(found, Console())
    write(found, json)


def passes(
    target: Target,
    own: Annotated[
        str | None, typer.Option("--passes", help="A list of your own passes, functions on a graph: file.py:name.")
    ] = None,
    train: PlainTrain = False,
    backward: PlainBackward = False,
    iterations: Annotated[int, typer.Option("--iterations", help="Steps of the optimizer.")] = 1,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="For the steps: sgd, adam, ...")] = None,
    dynamic: PlainDynamic = None,
    device: PlainDevice = None,
    seed: Seed = 0,
    everything: Annotated[bool, typer.Option("--all", help="Show passes that changed nothing, too.")] = False,
    json: Json = None,
) -> None:
    """Compare the numbers before and after every pass of inductor, or after each of your own.

    Exit code: 0 same, 1 a pass changes the numbers, 2 usage, 125 unknown.
    """
    from torchparity.cli.target import find_target, load_subject

    functions = None
    if own is not None:
        functions, _ = find_target(own)
        functions = list(functions) if isinstance(functions, list | tuple) else [functions]
        if not all(callable(function) for function in functions):
            raise UsageError(f"{own} is not a list of functions", hint="name a list of functions on a GraphModule")
    report = torchparity.check_passes(
        load_subject(target, device=device),
        passes=functions,
        iterations=iterations,
        optimizer=optimizer,
        train=train,
        backward=True if backward else None,
        dynamic=dynamic,
        seed=seed,
    )
    render_passes(report, Console(), everything=everything)
    write(report, json)
    raise typer.Exit({Status.SAME: 0, Status.DIFFERS: 1, Status.UNKNOWN: 125}[report.status])


def failing(what: str, watcher: Watcher, device: str | None) -> torchparity.Case | torchparity.Subject:
    """Return the case that a bundle holds, or the model that a target names."""
    if Path(what).is_dir():
        from torchparity.repro.bundle import located

        watcher.say("reading the case")
        return torchparity.read_bundle(located(Path(what)))
    if ":" not in what:
        hint = "name a folder that `capture` wrote, or file.py:name"
        raise UsageError(f"{what} is neither a bundle nor a model", hint=hint)
    from torchparity.cli.target import load_subject

    subject = load_subject(what, device=device)
    watcher.say("capturing, and looking for the graph that fails")
    return subject


def write(found: Any, path: Path | None) -> None:
    """Write a finding as JSON, where that was asked for."""
    if path is not None:
        write_data({"schema": SCHEMA_VERSION, **plain_data(found)}, path)
