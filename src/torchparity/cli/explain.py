"""`torchparity explain`: the story of one compilation."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import torchparity
from torchparity.cli.options import (
    MODEL,
    OUTPUT,
    FreshCache,
    Fullgraph,
    Json,
    PlainAutocast,
    PlainBackend,
    PlainBackward,
    PlainDevice,
    PlainDynamic,
    PlainMode,
    PlainTrain,
    Quiet,
    Seed,
    Target,
)
from torchparity.cli.progress import ProgressLine
from torchparity.errors import UsageError
from torchparity.report.machine import write_data
from torchparity.report.story import render_story, story_data


def explain(
    target: Target,
    train: PlainTrain = False,
    backward: PlainBackward = False,
    autocast: PlainAutocast = None,
    calls: Annotated[int, typer.Option("--calls", help="Calls with each of the inputs.", rich_help_panel=MODEL)] = 2,
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", help="Call it also with so many rows (may be repeated).", rich_help_panel=MODEL),
    ] = None,
    device: PlainDevice = None,
    seed: Seed = 0,
    backend: PlainBackend = "inductor",
    mode: PlainMode = None,
    dynamic: PlainDynamic = None,
    fullgraph: Fullgraph = False,
    fresh_cache: FreshCache = False,
    guards: Annotated[bool, typer.Option("--guards", help="Show every guard.", rich_help_panel=OUTPUT)] = False,
    inlined: Annotated[
        bool, typer.Option("--inlined", help="Show every function that was inlined.", rich_help_panel=OUTPUT)
    ] = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Tell what the compiler did with a model: frames, inlined functions, graph breaks, subgraphs, guards, recompiles.

    Exit code: 0 told, 1 told up to where the model or the compiler raised, 2 usage.
    """
    if json is not None and not json.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {json.parent} to write {json.name} to", hint="make it first")
    from torchparity.cli.target import load_subject

    subject = load_subject(target, device=device)
    with ProgressLine(quiet=quiet) as progress:
        story = torchparity.explain(
            subject,
            backend=backend,
            mode=mode,
            dynamic=dynamic,
            fullgraph=fullgraph,
            fresh_cache=fresh_cache,
            train=train,
            backward=True if backward else None,
            autocast=autocast,
            calls=calls,
            batches=batch or (),
            seed=seed,
            progress=progress,
        )
    render_story(story, Console(), guards=guards, inlined=inlined)
    if json is not None:
        write_data(story_data(story), json)
    raise typer.Exit(story.exit_code)
