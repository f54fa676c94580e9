"""Commands about cases: `capture` makes bundles, `run` judges one in a clean process, `show` only looks at one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import torchparity
from torchparity.cli.options import Asked, FailOn, Json, Leaves, Named, Quiet, severity_named, takes_request
from torchparity.cli.outputs import gated
from torchparity.cli.progress import ProgressLine
from torchparity.cli.subjects import limits_of
from torchparity.errors import UsageError
from torchparity.records import Status, family
from torchparity.report.machine import write_json
from torchparity.report.terminal import render

if TYPE_CHECKING:
    from torchparity.repro.values import Value

WORST_FIRST = (Status.DIFFERS, Status.UNKNOWN, Status.SAME)


@takes_request
def capture(
    target: Named,
    asked: Asked,
    out: Annotated[Path, typer.Option("--out", help="Folder for the bundles.")] = Path("cases"),
    calls: Annotated[int, typer.Option("--calls", help="Calls of each graph to keep.")] = 1,
) -> None:
    """Write every graph of one run as a bundle: after Dynamo and after AOTAutograd, forward and backward."""
    from torchparity.run.target import Target

    subject = Target(target, asked.device).load()
    console = Console()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", torchparity.CaptureWarning)
        cases = torchparity.capture(subject, calls=calls, out=out, **asked.options)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("bundle", "operations", "inputs", "from"):
        table.add_column(title, overflow="fold")
    for case in cases:
        lines = case.origin.get("lines") or [""]
        table.add_row(str(out / case.name), str(case.compute_nodes), str(len(case.inputs)), escape(lines[0]))
    console.print(table)
    refused = [str(entry.message) for entry in caught if issubclass(entry.category, torchparity.CaptureWarning)]
    for message in refused:
        Console(stderr=True).print(f"[yellow]refused:[/] {escape(message)}", highlight=False)
    raise typer.Exit(0 if cases else 2)


def run(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    times: Annotated[int, typer.Option("--times", help="Judge it so often, each time in a process of its own.")] = 1,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds it may take.")] = 1800.0,
    memory: Annotated[float | None, typer.Option("--memory", help="GiB of memory it may take.")] = None,
    fail_on: FailOn = None,
    json: Json = None,
    leaves: Leaves = 10,
    quiet: Quiet = False,
) -> None:
    """Judge one bundle in a clean process.

    Exit code: 0 same, 1 differs, 2 usage, 125 unknown.
    """
    if times < 1:
        raise UsageError(f"{times} times is never", hint="use --times 1 or more")
    level = severity_named(fail_on)
    from torchparity.verbs.asking import open_pool

    with ProgressLine(quiet=quiet) as progress, open_pool(1) as pool:
        case = torchparity.read_bundle(bundle)
        limits = limits_of(timeout, memory)
        verdicts = [torchparity.run_bundle(bundle, pool=pool, limits=limits, progress=progress) for _ in range(times)]
    verdict = min(verdicts, key=lambda entry: WORST_FIRST.index(entry.status))
    render(verdict, Console(), leaves=leaves)
    if case.signature is not None or times > 1:
        kind = case.signature.kind if case.signature is not None else family(verdict.kind)
        again = sum(entry.status is Status.DIFFERS and family(entry.kind) == kind for entry in verdicts)
        print(
            f"  reproduced {again} of {times}" + (f": {case.signature.summary}" if case.signature is not None else "")
        )
    if json is not None:
        write_json(verdict, json)
    raise typer.Exit(gated(verdict, level))


def show(bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")]) -> None:
    """Say what a bundle holds, without running anything of it."""
    from torchparity.repro.values import Dense

    case = torchparity.read_bundle(bundle)
    console = Console()
    facts: dict[str, Any] = {
        "case": f"{case.name}, {case.direction}, after {case.level}",
        "digest": f"{case.digest} (the files are as they were written)",
        "operations": case.compute_nodes,
        "backend": case.recipe.backend_name(),
        "recipe": case.recipe.to_source().strip().splitlines()[-1],
        "backward": case.backward,
        "autocast": " ".join(case.autocast) if case.autocast else "no",
        "asked": ", ".join(f"{name}={value!r}" for name, value in case.request.given().items()) or "nothing besides",
        "failure": case.signature.summary if case.signature is not None else "none recorded",
        "from": (case.origin.get("lines") or ["unknown"])[0],
        "after": (case.origin.get("after") or {}).get("reason", "the start"),
        "written by": f"torchparity {case.environment.get('torchparity')}, torch {case.environment.get('torch')}",
    }
    for name, value in facts.items():
        console.print(f"[dim]{name:>11}[/]  {escape(str(value))}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("input", "what", "bytes"):
        table.add_column(title, overflow="fold")
    for name, value in case.inputs:
        size = case.storages[value.storage].data.numel() if isinstance(value, Dense) else ""
        table.add_row(escape(name), escape(described(value)), str(size))
    console.print(table)


def described(value: Value) -> str:
    """Say in a few words what an input is."""
    from torchparity.repro.values import Dense, Sparse, Symbol, Wrapper

    if isinstance(value, Dense):
        kind = " parameter" if value.parameter else ""
        return f"{value.dtype}{list(value.shape)} stride {list(value.stride)} of storage {value.storage}{kind}"
    if isinstance(value, Sparse):
        return f"{value.layout} {list(value.shape)}"
    if isinstance(value, Wrapper):
        return f"{value.module}.{value.name} {list(value.shape)}"
    if isinstance(value, Symbol):
        return f"{value.value}, a symbolic size" + (f" = {value.expression}" if value.expression else "")
    return value.to_source()
