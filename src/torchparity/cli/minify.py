"""`torchparity minify`: from a failing bundle, or from a model that fails, to the smallest script that shows it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import torchparity
from torchparity.cli.options import Asked, Budget, Memory, Quiet, Timeout, Trust, Workers, takes_request
from torchparity.cli.outputs import printing
from torchparity.cli.progress import Watcher
from torchparity.cli.subjects import at_least_one, case_or_target, limits_of, seconds_of, trusted_case
from torchparity.errors import INTERRUPTED, NoFailingGraph, UsageError
from torchparity.workers.pool import Pool, default_workers

# Where a minification keeps what it began with.
START = "start"


@takes_request
def minify(
    asked: Asked,
    what: Annotated[str | None, typer.Argument(help="A bundle that fails, or a model: file.py:name.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for everything that is found.")] = Path("small"),
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on in the folder of an earlier run.")] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", help="Command that decides; {} is a bundle. Exit 0 interesting, 1 not, 125 unknown."),
    ] = None,
    budget: Budget = None,
    queries: Annotated[int | None, typer.Option("--queries", help="Queries to spend.")] = None,
    workers: Workers = None,
    timeout: Timeout = 300.0,
    memory: Memory = None,
    ray: Annotated[
        str | None, typer.Option("--ray", help="A Ray cluster that judges: its address, or auto.", show_default=False)
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Make a failure as small as it goes: the smallest script that still fails, run three times in cold processes.

    Exit code: 0 found and reproduced, 2 usage, 3 nothing fails, 125 not reproduced, 130 interrupted (what was
    found is kept).
    """
    if (what is None) == (resume is None):
        raise UsageError("name a bundle, a model, or `--resume FOLDER`", hint="see `torchparity minify --help`")
    at_least_one(queries=queries, workers=workers)
    spending: dict[str, Any] = {"budget": seconds_of(budget), "queries": queries, "ray": ray}
    with Watcher(quiet=quiet) as watcher:
        if resume is not None:
            asked.request("a bundle")
            out = resume
            if (resume / START).is_dir():
                trusted_case(resume / START, trust=trust)
            small = torchparity.resume_minify(resume, check=check, workers=workers, listen=watcher, **spending)
        else:
            watcher.say("reading the case" if Path(str(what)).is_dir() else "looking for the graph that fails")
            with starting(
                workers, command=check is not None
            ) as pool:  # Its server starts while torch is imported here.
                subject = case_or_target(str(what), asked.device, trust=trust)
                how: dict[str, Any] = {
                    "check": check,
                    "workers": workers,
                    "limits": limits_of(timeout, memory),
                    "pool": pool,
                }
                try:
                    small = torchparity.minify(
                        subject, out=out, listen=watcher, say=watcher.say, **how, **spending, **asked.options
                    )
                except NoFailingGraph:
                    if not tell_program(subject, asked, pool, out, watcher, spending["budget"]):
                        raise
                    raise typer.Exit(0) from None
    tell(small, out, printing(), check=check)
    if small.reproduced == (0, 0):
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(0 if small.reproduced[0] == small.reproduced[1] else 125)


def tell_program(subject: Any, asked: Asked, pool: Pool, out: Path, watcher: Watcher, budget: float | None) -> bool:
    """Make a model small as a program of Python, where none of its graphs fails; tell whether that was possible."""
    from torchparity.verbs.programs import as_smallest, minify_program

    if not isinstance(subject, torchparity.Target):
        return False
    began = time.monotonic()
    watcher.say("no graph of the model fails by itself")
    found = minify_program(subject, asked.request("minify"), pool, budget=budget, say=watcher.say)
    if found is None or not found.script or found.reproduced[0] < found.reproduced[1]:
        return False
    small = as_smallest(found, out, time.monotonic() - began)
    lines = [
        f"{found.started_from} operations became {found.operations}: {small.queries} queries, {small.seconds:.0f} s",
        f"{'failure':>12}  {small.title}",
        f"{'script':>12}  {out / 'repro.py'}",
        f"{'reproduced':>12}  {small.reproduced[0]} of {small.reproduced[1]}, in cold processes",
        "",
        small.script,
    ]
    console = printing()
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
    return True


def starting(workers: int | None, *, command: bool) -> Pool:
    """Start the workers that will be asked."""
    from torchparity.verbs.asking import open_pool

    return open_pool(workers or default_workers(), compilers=not command)


def tell(small: torchparity.Minified, out: Path, console: Console, *, check: str | None = None) -> None:
    """Say what was found, and where it is."""
    before, (again, times) = small.started_from, small.reproduced
    inputs = f"{before['inputs']} inputs {len(small.case.inputs)}"
    sizes = f"{before['operations']} operations became {small.compute_nodes}, {inputs}"
    early = "" if small.complete else " (stopped early)"
    lines = [f"{sizes}: {small.queries} queries, {small.seconds:.0f} s{early}"]
    facts: list[tuple[str, Any]] = [
        ("failure", small.signature.summary),
        ("script", out / "repro.py" if small.script_is_plain else out / "case" / "repro.py"),
        ("reproduced", f"{again} of {times}, in cold processes" if times else "not tried: interrupted"),
    ]
    if small.unanswered:
        facts.append(("no answer", f"to {small.unanswered} queries; nothing rests on them"))
    if (out / "issue.md").exists():
        facts.append(("issue", out / "issue.md"))
    if small.passing is not None:
        facts.append(("passes", f"{out / 'passing'}, the nearest case that does"))
    facts += [("also met", out / "others" / name) for name in small.others]
    if not small.complete:
        command = f" --check {shlex.quote(check)}" if check is not None else ""
        facts.append(("go on with", f"torchparity minify --resume {out}{command}"))
    lines += [f"{name:>12}  {fact}" for name, fact in facts]
    if small.script_is_plain:
        lines += ["", small.script]
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
