"""`torchparity explain`: the story of one compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchparity.cli.progress import ProgressLine
from torchparity.cli.target import load_subject
from torchparity.errors import UsageError
from torchparity.jobs.watching import explain as tell
from torchparity.report.machine import write_data
from torchparity.report.story import render_story, story_data

MODEL = "What to run"
COMPILER = "The compiler"
OUTPUT = "Output"


def explain(
    target: Annotated[
        str, typer.Argument(help="file.py:name or package.module:name; a model, a function or a factory.")
    ],
    train: Annotated[
        bool, typer.Option("--train", help="Train mode, forward and backward.", rich_help_panel=MODEL)
    ] = False,
    backward: Annotated[
        bool, typer.Option("--backward", help="Backward too, in eval mode.", rich_help_panel=MODEL)
    ] = False,
    autocast: Annotated[
        str | None,
        typer.Option("--autocast", help="Run under autocast: bfloat16 or float16.", rich_help_panel=MODEL),
    ] = None,
    calls: Annotated[int, typer.Option("--calls", help="Calls with each of the inputs.", rich_help_panel=MODEL)] = 2,
    batch: Annotated[
        list[int] | None,
        typer.Option("--batch", help="Call it also with so many rows (may be repeated).", rich_help_panel=MODEL),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Move model and inputs there first.", rich_help_panel=MODEL)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.", rich_help_panel=MODEL)] = 0,
    backend: Annotated[
        str, typer.Option("--backend", help="Any torch.compile backend.", rich_help_panel=COMPILER)
    ] = "inductor",
    mode: Annotated[str | None, typer.Option("--mode", help="A torch.compile mode.", rich_help_panel=COMPILER)] = None,
    dynamic: Annotated[
        bool | None,
        typer.Option("--dynamic/--static", help="Dynamic shapes on or off.", rich_help_panel=COMPILER),
    ] = None,
    fullgraph: Annotated[
        bool, typer.Option("--fullgraph", help="Refuse graph breaks.", rich_help_panel=COMPILER)
    ] = False,
    fresh_cache: Annotated[
        bool, typer.Option("--fresh-cache", help="Compile with an empty cache.", rich_help_panel=COMPILER)
    ] = False,
    guards: Annotated[bool, typer.Option("--guards", help="Show every guard.", rich_help_panel=OUTPUT)] = False,
    inlined: Annotated[
        bool, typer.Option("--inlined", help="Show every function that was inlined.", rich_help_panel=OUTPUT)
    ] = False,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write everything to this file.", rich_help_panel=OUTPUT)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Tell what the compiler did with a model: frames, inlined functions, graph breaks, subgraphs, guards, recompiles.

    Exit code: 0 told, 1 told up to where the model or the compiler raised, 2 usage.
    """
    if json is not None and not json.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {json.parent} to write {json.name} to", hint="make it first")
    subject = load_subject(target, device=device)
    with ProgressLine(quiet=quiet) as progress:
        story = tell(
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
