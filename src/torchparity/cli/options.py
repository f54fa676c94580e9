"""Options that several commands share, each said once.

Commands that are about a bundle or a model say of an option that it is for a model; the plain ones are about a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# --- a bundle, or a model ------------------------------------------------------------------------

What = Annotated[str, typer.Argument(help="A bundle that fails, or a model: file.py:name.")]
Backend = Annotated[str, typer.Option("--backend", help="For a model: the compiler that is wrong.")]
Train = Annotated[bool, typer.Option("--train", help="For a model: train mode, forward and backward.")]
Backward = Annotated[bool, typer.Option("--backward", help="For a model: backward too, in eval mode.")]
Autocast = Annotated[str | None, typer.Option("--autocast", help="For a model: bfloat16 or float16.")]
Dynamic = Annotated[bool | None, typer.Option("--dynamic/--static", help="For a model: dynamic shapes.")]
Device = Annotated[str | None, typer.Option("--device", help="For a model: move it there first.")]

# --- a model -------------------------------------------------------------------------------------

MODEL, COMPILER, OUTPUT = "What to run", "The compiler", "Output"

Target = Annotated[str, typer.Argument(help="file.py:name or package.module:name; a model, a function or a factory.")]
PlainTrain = Annotated[bool, typer.Option("--train", help="Train mode, forward and backward.", rich_help_panel=MODEL)]
PlainBackward = Annotated[bool, typer.Option("--backward", help="Backward too, in eval mode.", rich_help_panel=MODEL)]
PlainAutocast = Annotated[
    str | None, typer.Option("--autocast", help="Run under autocast: bfloat16 or float16.", rich_help_panel=MODEL)
]
PlainDevice = Annotated[
    str | None, typer.Option("--device", help="Move model and inputs there first.", rich_help_panel=MODEL)
]
Optimizer = Annotated[
    str | None, typer.Option("--optimizer", help="A torch.optim class, such as adamw.", rich_help_panel=MODEL)
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.", rich_help_panel=MODEL)]
PlainBackend = Annotated[
    str, typer.Option("--backend", help="Any of `torchparity backends`.", rich_help_panel=COMPILER)
]
PlainMode = Annotated[str | None, typer.Option("--mode", help="A torch.compile mode.", rich_help_panel=COMPILER)]
PlainDynamic = Annotated[
    bool | None, typer.Option("--dynamic/--static", help="Dynamic shapes on or off.", rich_help_panel=COMPILER)
]
Fullgraph = Annotated[bool, typer.Option("--fullgraph", help="Refuse graph breaks.", rich_help_panel=COMPILER)]
FreshCache = Annotated[
    bool, typer.Option("--fresh-cache", help="Compile with an empty cache.", rich_help_panel=COMPILER)
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", help="AREA.KEY=VALUE, such as inductor.max_fusion_size=1.", rich_help_panel=COMPILER),
]
Leaves = Annotated[int, typer.Option("--leaves", help="Rows of the table.", rich_help_panel=OUTPUT)]

# --- what it may cost, and what comes out --------------------------------------------------------

Timeout = Annotated[float, typer.Option("--timeout", help="Seconds one query may take.")]
Memory = Annotated[float | None, typer.Option("--memory", help="GiB of memory one query may take.")]
Budget = Annotated[str | None, typer.Option("--budget", help="Time to spend: 90s, 5m, 1h.")]
Workers = Annotated[int | None, typer.Option("--workers", help="Queries at once.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write everything to this file.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=OUTPUT)]
