"""`torchparity minify`: from a failing bundle, or from a model that fails, to the smallest script that shows it."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status as Spinner

import torchparity
from torchparity.cli.cases import limits_of
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
    Workers,
)
from torchparity.errors import UsageError
from torchparity.execute.pool import Pool, default_workers

if TYPE_CHECKING:
    from torchparity.minifier.chase import Question

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
INTERRUPTED = 130


def minify(
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
    backend: Backend = "inductor",
    train: Train = False,
    backward: Backward = False,
    autocast: Autocast = None,
    dynamic: Dynamic = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Make a failure as small as it goes: the smallest script that still fails, run three times in cold processes.

    Exit code: 0 found and reproduced, 2 usage, 125 not reproduced, 130 interrupted (what was found is kept).
    """
    if (what is None) == (resume is None):
        raise UsageError("name a bundle, a model, or `--resume FOLDER`", hint="see `torchparity minify --help`")
    for name, number in (("--queries", queries), ("--workers", workers)):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number} is too few", hint="give at least 1")
    seconds = seconds_of(budget) if budget is not None else None
    console = Console()
    limits = limits_of(timeout, memory)
    spending: dict[str, Any] = {"budget": seconds, "queries": queries}
    with Watcher(quiet=quiet) as watcher:
        if resume is not None:
            out = resume
            small = torchparity.resume_minify(resume, workers=workers, listen=watcher, **spending)
        elif Path(str(what)).is_dir():
            watcher.say("reading the case")
            starting = Pool(workers=workers or default_workers()) if check is None else contextlib.nullcontext()
            with starting as pool:  # Its server starts while torch is imported here.
                case = torchparity.read_bundle(Path(str(what)))
                how: dict[str, Any] = {"check": check, "pool": pool, "workers": workers}
                small = torchparity.minify(case, out=out, limits=limits, listen=watcher, **how, **spending)
        else:
            refuse(str(what), check)
            watcher.say("capturing, and looking for the graph that fails")
            subject = model_of(str(what), device)
            with Pool(workers=workers or default_workers()) as pool:
                case, verdict = torchparity.find_failing(
                    subject,
                    backend=backend,
                    train=train,
                    backward=True if backward else None,
                    autocast=autocast,
                    dynamic=dynamic,
                    pool=pool,
                    limits=limits,
                )
                watcher.say(f"{case.name} fails: {verdict.kind}")
                small = torchparity.minify(
                    case, out=out, limits=limits, listen=watcher, pool=pool, verdict=verdict, **spending
                )
    tell(small, out, console)
    if small.reproduced == (0, 0):
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(0 if small.reproduced[0] == small.reproduced[1] else 125)


def refuse(what: str, check: str | None) -> None:
    """Refuse what is neither a bundle nor a model, and to decide about a model by a command."""
    if ":" not in what:
        hint = "name a folder that `capture` wrote, or file.py:name"
        raise UsageError(f"{what} is neither a bundle nor a model", hint=hint)
    if check is not None:
        hint = "`torchparity capture` writes bundles"
        raise UsageError("`--check` decides about a bundle, not about a model", hint=hint)


def model_of(what: str, device: str | None) -> torchparity.Subject:
    """Return the model that a target names."""
    from torchparity.cli.target import load_subject

    return load_subject(what, device=device)


def seconds_of(text: str) -> float:
    """Return a time such as `90s`, `5m` or `1h` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{text!r} is not a time", hint="write it as 90s, 5m or 1h")
    return float(found[1]) * UNITS[found[2]]


class Watcher:
    """Progress on stderr: a line that changes on a terminal, one line for each query elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.spinner = Spinner("", console=self.console) if self.console.is_terminal and not quiet else None
        self.began = time.monotonic()

    def __enter__(self) -> Watcher:
        if self.spinner is not None:
            self.spinner.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.spinner is not None:
            self.spinner.stop()

    def say(self, text: str) -> None:
        """Show what is being done."""
        if self.spinner is not None:
            self.spinner.update(escape(text))
        elif not self.quiet:
            self.console.print(escape(text), highlight=False)

    def __call__(self, question: Question) -> None:
        """Show a query that was answered, and how far it all is."""
        rate = question.seconds / max(1, question.number)
        left = f", about {question.expected_seconds:.0f} s left" if question.left else ""
        text = (
            f"query {question.number} ({question.stage}): {question.compute_nodes} operations, "
            f"{question.answer.word}; best {question.best}; {rate:.1f} s a query{left}"
        )
        self.say(text)


def tell(small: torchparity.Minified, out: Path, console: Console) -> None:
    """Say what was found, and where it is."""
    before, (again, times) = small.started_from, small.reproduced
    sizes = (
        f"{before['operations']} operations became {small.compute_nodes}, {before['inputs']} inputs {len(small.inputs)}"
    )
    early = "" if small.complete else " (stopped early)"
    lines = [f"{sizes}: {small.queries} queries, {small.seconds:.0f} s{early}"]
    facts = [
        ("failure", (small.signature or {}).get("summary", "")),
        ("script", out / "repro.py" if small.script_is_plain else out / "case" / "repro.py"),
        ("reproduced", f"{again} of {times}, in cold processes" if times else "not tried: interrupted"),
    ]
    if (out / "issue.md").exists():
        facts.append(("issue", out / "issue.md"))
    if small.passing is not None:
        facts.append(("passes", f"{out / 'passing'}, the nearest case that does"))
    facts += [("also met", out / "others" / name) for name in small.others]
    if not small.complete:
        facts.append(("go on with", f"torchparity minify --resume {out}"))
    lines += [f"{name:>12}  {fact}" for name, fact in facts]
    if small.script_is_plain:
        lines += ["", small.script]
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
