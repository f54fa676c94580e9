"""Commands about cases: `capture` makes bundles, `run` judges one in a clean process, `show` only looks at one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import torchparity
from torchparity.cli.options import (
    Asked,
    FailOn,
    Json,
    Junit,
    Leaves,
    Named,
    Quiet,
    Sanitize,
    Trust,
    severity_named,
    takes_request,
)
from torchparity.cli.outputs import Outputs, gated, printing
from torchparity.cli.progress import ProgressLine
from torchparity.cli.subjects import limits_of, may_sanitize, named, trusted_case
from torchparity.errors import UsageError
from torchparity.records import Status, family
from torchparity.records.strangers import harmless
from torchparity.report.terminal import render
from torchparity.request import EVERY, PLAIN

# A request that asks for nothing, as a bundle writes it.
PLAIN_FACTS = {**{name: getattr(PLAIN, name) for name in EVERY}, "options": {}, "config": {}, "ignore": []}
WORST_FIRST = (Status.DIFFERS, Status.UNKNOWN, Status.SAME)


@takes_request
def capture(
    target: Named,
    asked: Asked,
    out: Annotated[Path, typer.Option("--out", help="Folder for the bundles.")] = Path("cases"),
    calls: Annotated[int, typer.Option("--calls", help="Calls of each graph to keep.")] = 1,
) -> None:
    """Write every graph of one run as a bundle: after Dynamo and after AOTAutograd, forward and backward."""
    asked.request("capture")
    wanted = named(target, asked.device)
    folder = free_folder(out)
    subject = wanted.load()
    console = printing()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", torchparity.CaptureWarning)
        cases = torchparity.capture(subject, calls=calls, out=folder, **asked.options)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("bundle", "operations", "inputs", "from"):
        table.add_column(title, overflow="fold")
    written = [case for case in cases if (folder / case.name / "case.json").is_file()]
    for case in written:
        lines = case.origin.get("lines") or [""]
        table.add_row(str(out / case.name), str(case.compute_nodes), str(len(case.inputs)), escape(lines[0]))
    console.print(table)
    refused = [str(entry.message) for entry in caught if issubclass(entry.category, torchparity.CaptureWarning)]
    for message in refused:
        Console(stderr=True).print(f"[yellow]refused:[/] {escape(message)}", highlight=False)
    raise typer.Exit(0 if written else 2)


def free_folder(out: Path) -> Path:
    """Return where bundles are written, whatever folder the target goes to; refuse a place that cannot be one."""
    folder = out.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be a folder: {error.strerror}", hint="give --out another name") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{out} cannot be written to", hint="give --out another name")
    return folder


def run(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    times: Annotated[int, typer.Option("--times", help="Judge it so often, each time in a process of its own.")] = 1,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds it may take.")] = 1800.0,
    memory: Annotated[float | None, typer.Option("--memory", help="GiB of memory it may take.")] = None,
    trust: Trust = False,
    sanitize: Sanitize = False,
    fail_on: FailOn = None,
    json: Json = None,
    junit: Junit = None,
    leaves: Leaves = 10,
    quiet: Quiet = False,
) -> None:
    """Judge one bundle in a clean process.

    Exit code: 0 same, 1 differs, 2 usage, 125 unknown.
    """
    if times < 1:
        raise UsageError(f"{times} times is never", hint="use --times 1 or more")
    level = severity_named(fail_on)
    outputs = Outputs(json=json, junit=junit).validated()
    case = trusted_case(bundle, trust=trust)
    may_sanitize(sanitize)
    from torchparity.verbs.asking import open_pool

    with ProgressLine(quiet=quiet) as progress, open_pool(1) as pool:
        limits = limits_of(timeout, memory)
        verdicts = [torchparity.run_bundle(bundle, pool=pool, limits=limits, progress=progress) for _ in range(times)]
    verdict = min(verdicts, key=lambda entry: WORST_FIRST.index(entry.status))
    if sanitize:
        from torchparity.verbs.sanitize import sanitized

        verdict = sanitized(bundle, case.request, verdict, seconds=timeout)
    render(verdict, printing(), leaves=leaves)
    if case.signature is not None or times > 1:
        kind = case.signature.kind if case.signature is not None else family(verdict.kind)
        again = sum(entry.status is Status.DIFFERS and family(entry.kind) == kind for entry in verdicts)
        print(
            f"  reproduced {again} of {times}" + (f": {case.signature.summary}" if case.signature is not None else "")
        )
    outputs.write(verdict)
    raise typer.Exit(gated(verdict, level))


def show(bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")]) -> None:
    """Say what a bundle holds and what it would run, without running anything of it."""
    from torchparity.repro.looking import look_at

    look = look_at(bundle)
    facts, request = look.facts, {**PLAIN_FACTS, **look.facts["request"]}
    origin, environment = facts["origin"], facts["environment"]
    asked = [f"{name}={request[name]!r}" for name in EVERY if name != "backend" and request[name] != PLAIN_FACTS[name]]
    lines: dict[str, Any] = {
        "case": f"{facts['name']}, {facts['direction']}, after {facts['level']}",
        "digest": f"{facts['digest']} (the files are as they were written)",
        "made by": "you, on this machine" if look.ours else "somebody else, or elsewhere (--trust to run it)",
        "operations": facts["compute_nodes"],
        "backend": request["backend"]["expression"],
        "imports": "; ".join(request["backend"]["imports"]) or "nothing besides",
        "asked": ", ".join(asked) or "nothing besides",
        "failure": (facts["signature"] or {}).get("summary", "none recorded"),
        "from": (origin.get("lines") or ["unknown"])[0],
        "after": (origin.get("after") or {}).get("reason", "the start"),
        "written by": f"torchparity {environment.get('torchparity')}, torch {environment.get('torch')}",
    }
    console = printing()
    for name, value in lines.items():
        console.print(f"[dim]{name:>11}[/]  {escape(harmless(str(value)))}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("input", "what", "bytes"):
        table.add_column(title, overflow="fold")
    for name, value in facts["inputs"]:
        storage = value.get("storage")
        size = facts["storages"][storage]["bytes"] if isinstance(storage, int) else ""
        table.add_row(escape(harmless(name)), escape(harmless(described(value))), str(size))
    console.print(table)
    for name, text in {"the graph": look.graph, **look.files}.items():
        console.print(f"\n[dim]{escape(name)}, as it would run:[/]", highlight=False)
        console.print(harmless(text.strip()), markup=False, highlight=False)


def described(value: Mapping[str, Any]) -> str:
    """Say in a few words what an input is."""
    kind = value["kind"]
    if kind == "dense":
        parameter = " parameter" if value.get("parameter") else ""
        return f"{value['dtype']}{value['shape']} stride {value['stride']} of storage {value['storage']}{parameter}"
    if kind == "sparse":
        return f"{value['layout']} {value['shape']}"
    if kind == "wrapper":
        return f"{value['module']}.{value['name']} {value['shape']}"
    if kind == "symbol":
        return f"{value['value']}, a symbolic size" + (f" = {value['expression']}" if value.get("expression") else "")
    return str(value.get("text", value.get("device", "")))
