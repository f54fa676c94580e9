"""`torchparity`: commands and options (what an exit code means stands in `start.py`).

Torch takes two seconds to import, so a command imports what needs it when it runs: help and completion are instant.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import torchparity
from torchparity.cli import cases, diagnose, finding, hunt, minify, since, sweep
from torchparity.cli.complaint import complain
from torchparity.cli.options import (
    OUTPUT,
    Asked,
    FailOn,
    Json,
    Junit,
    Leaves,
    Named,
    Quiet,
    RequireCompiled,
    Sanitize,
    severity_named,
    share_of,
    takes_request,
)
from torchparity.cli.outputs import Outputs, command_line, gated, printing
from torchparity.cli.progress import ProgressLine
from torchparity.cli.subjects import limits_of, may_choose, may_sanitize, named
from torchparity.errors import ParityError, UsageError
from torchparity.report.terminal import render
from torchparity.version import __version__

app = typer.Typer(
    name="torchparity",
    help="Does the compiled PyTorch model still compute what the model computes?",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

SAFETY = "Safety"
RANKS = "Under torchrun"
CHECK_SECONDS = 1800.0
Isolate = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate",
        help="In another process: a crash is a verdict. The default where there is a GPU.",
        rich_help_panel=SAFETY,
        show_default=False,
    ),
]

IsolatedMemory = Annotated[
    float | None, typer.Option("--memory", help="With --isolate: GiB it may take.", rich_help_panel=SAFETY)
]
Summary = Annotated[
    Path | None, typer.Option("--summary", help="Add Markdown to this file, for CI.", rich_help_panel=OUTPUT)
]


def show_version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        print(f"torchparity {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Does the compiled PyTorch model still compute what the model computes?"""


@app.command()
@takes_request
def check(
    target: Named,
    asked: Asked,
    isolate: Isolate = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="With --isolate or torchrun: seconds it may take.", rich_help_panel=SAFETY),
    ] = None,
    memory: IsolatedMemory = None,
    rank_timeout: Annotated[
        float,
        typer.Option("--rank-timeout", help="Seconds one run of a rank may take.", rich_help_panel=RANKS),
    ] = 300.0,
    different_graphs: Annotated[
        bool,
        typer.Option("--different-graphs", help="Ranks may compile different graphs.", rich_help_panel=RANKS),
    ] = False,
    sanitize: Sanitize = False,
    fail_on: FailOn = None,
    require_compiled: RequireCompiled = None,
    json: Json = None,
    junit: Junit = None,
    summary: Summary = None,
    leaves: Leaves = 10,
    quiet: Quiet = False,
) -> None:
    """Compare a model with its compiled form.

    Exit code: 0 same, 1 differs, 2 usage, 125 unknown (as `git bisect run` wants it).
    """
    outputs = Outputs(json=json, junit=junit, summary=summary).validated()
    request, named_target = asked.request("check"), named(target, asked.device)
    level, least = severity_named(fail_on), share_of(require_compiled)
    from torchparity.ranks.talk import place_of
    from torchparity.verbs.apart import checked_apart
    from torchparity.verbs.asking import open_pool

    place = place_of(os.environ)
    may_sanitize(sanitize, ranks=place is not None)
    may_choose(request, ranks=place is not None)
    isolate = by_default(isolate, ranks=place is not None)
    outputs = replace(outputs, command=command_line(sys.argv[1:], ranks=place.world if place is not None else 0))
    refuse_idle(timeout, memory, isolate=isolate, ranks=place is not None)
    timeout = timeout if timeout is not None else CHECK_SECONDS
    if place is not None:
        seconds = (rank_timeout, timeout)
        check_ranks(place, named_target, request, seconds, different_graphs, leaves, outputs, quiet=quiet)
    with ProgressLine(quiet=quiet) as progress:
        if isolate:
            with open_pool(1) as pool:
                verdict = checked_apart(named_target, request, pool, limits_of(timeout, memory), progress=progress)
        else:
            verdict = torchparity.check(named_target.load(), progress=progress, **asked.options)
    if sanitize:
        from torchparity.verbs.sanitize import sanitized

        verdict = sanitized(named_target, request, verdict, seconds=timeout)
    render(verdict, printing(), leaves=leaves)
    outputs.write(verdict)
    raise typer.Exit(gated(verdict, level, compiled=least))


def by_default(isolate: bool | None, *, ranks: bool) -> bool:
    """Tell whether a check runs in another process: on a GPU a kernel that fails takes the device from its process."""
    from torchparity import torchapi

    return isolate if isolate is not None else torchapi.has_gpu() and not ranks


def refuse_idle(timeout: float | None, memory: float | None, *, isolate: bool, ranks: bool) -> None:
    """Raise where a limit was given that limits nothing."""
    if ranks and isolate:
        raise UsageError("--isolate and torchrun do not go together", hint="each rank is a process of its own already")
    for option, value, works in (("--timeout", timeout, isolate or ranks), ("--memory", memory, isolate)):
        if value is not None and not works:
            raise UsageError(f"{option} limits nothing in this process", hint=f"add --isolate, or leave out {option}")
        if value is not None and not value > 0:
            raise UsageError(f"{option} {value:g} leaves nothing", hint="give a positive number")


def check_ranks(
    place: Any,
    target: Any,
    request: Any,
    seconds: tuple[float, float],
    different_graphs: bool,
    leaves: int,
    outputs: Outputs,
    *,
    quiet: bool,
) -> NoReturn:
    """Check under torchrun: this process is one rank of several."""
    from torchparity.ranks.command import check_on_ranks
    from torchparity.ranks.report import render_joint, render_loss

    console = printing()

    def report(joint: Any) -> None:
        render_joint(joint, console, leaves=leaves)
        outputs.write(joint)

    with ProgressLine(quiet=quiet or place.rank > 0) as progress:
        check_on_ranks(
            place,
            target,
            request,
            seconds=seconds[0],
            limit=seconds[1],
            same_graphs=not different_graphs,
            progress=progress,
            report=report,
            lost=lambda loss: render_loss(loss, console),
            complain=complain,
        )


app.command()(diagnose.diagnose)
app.command()(diagnose.report)
app.command()(sweep.sweep)
app.command()(sweep.baseline)
app.command()(sweep.query)
app.command()(cases.capture)
app.command()(cases.run)
app.command()(cases.show)
app.command()(minify.minify)
app.command()(finding.locate)
app.command()(finding.blame)
app.command()(finding.passes)
app.command()(finding.explain)
app.command()(since.since)
app.command()(hunt.hunt)


@app.command()
def backends() -> None:
    """List the backends that torch.compile knows here, and the engines that run exported models."""
    from torchparity.compilers.engines import ENGINES, engine_lines
    from torchparity.torchapi import list_backends

    for name in list_backends():
        if name not in ENGINES:
            print(name)
    for line in engine_lines():
        print(line)


@app.command()
def faults() -> None:
    """List the faults that can be planted, to see whether a check would notice."""
    kinds = torchparity.faults.KINDS
    width = max(map(len, kinds))
    for name, fault in kinds.items():
        print(f"{name:{width}}  {fault.summary}")


def command() -> int:
    """Run the command line: what we raise on purpose becomes two lines; return the exit code."""
    warnings.filterwarnings("ignore", module=r"torch\..*")
    logging.disable(logging.ERROR)  # What torch logs when a candidate fails is in the verdict.
    console = Console(stderr=True, soft_wrap=True)
    try:
        code = app(since.with_releases(diagnose.with_json(sys.argv[1:])), standalone_mode=False)
    except ParityError as error:
        complain(error)
        return error.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # What the parser raises. Its class lives in click or inside typer, by typer's version.
        if not hasattr(error, "format_message"):
            raise
        console.print(f"error: {error.format_message()}", style="red", markup=False, highlight=False)
        console.print("hint: torchparity --help shows what can be said", markup=False, highlight=False)
        return 2
    return code if isinstance(code, int) else 0
