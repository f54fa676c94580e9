"""`torchparity since`: which release of torch broke a script."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import torchparity
from torchparity.cli.options import Json, Quiet
from torchparity.cli.outputs import printing
from torchparity.cli.progress import Watcher
from torchparity.cli.subjects import limits_of, writable
from torchparity.errors import INTERRUPTED, UsageError
from torchparity.records import Progress

TORCH = "--torch"
ENVIRONMENTS = "Environments"
KEPT = "environments that were made are kept, and so are the answers in a file of --json"

Script = Annotated[str | None, typer.Argument(help="A script that exits with 0 where it works, 1 where it fails.")]
Releases = Annotated[
    list[str] | None,
    typer.Option(TORCH, help="Releases: 2.9 2.10 2.13.0; the last five series by default.", show_default=False),
]
Interpreters = Annotated[
    list[str] | None,
    typer.Option("--python", help="An interpreter that has a torch already (may be repeated).", show_default=False),
]
Meant = Annotated[
    str | None,
    typer.Option("--error", help="The failure that is meant: AssertionError, SIGSEGV, ...; else the newest one."),
]
IndexUrl = Annotated[str | None, typer.Option("--index-url", help="Index for pip.", rich_help_panel=ENVIRONMENTS)]
PipOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--pip-option",
        help="Handed on to pip install: --pip-option=--pre (may be repeated).",
        rich_help_panel=ENVIRONMENTS,
        show_default=False,
    ),
]
Listing = Annotated[
    bool, typer.Option("--list", help="Show the environments that there are.", rich_help_panel=ENVIRONMENTS)
]


def with_releases(arguments: list[str]) -> list[str]:
    """Return the arguments of a command line in which `since ... --torch 2.9 2.10` names each release by itself."""
    if "since" not in arguments[:1]:
        return arguments
    from torchparity.releases.versions import VERSION

    told: list[str] = []
    naming = False
    for word in arguments:
        listed = naming and all(map(VERSION.fullmatch, word.rstrip(",").split(",")))
        told += [TORCH, word] if listed and told[-1] != TORCH else [word]
        naming = listed or word == TORCH
    return told


def since(
    script: Script = None,
    torch: Releases = None,
    python: Interpreters = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds the script may take in one release.")] = 300.0,
    error: Meant = None,
    index_url: IndexUrl = None,
    pip_option: PipOptions = None,
    show: Listing = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Run a script in released versions of torch, and say which of them broke it.

    Environments are made once with venv and pip and kept in ~/.cache/torchparity, or in $TORCHPARITY_CACHE.

    Exit code: 0 it works in the newest release that was asked, 1 it fails there, 2 usage, 125 unknown.
    """
    if show:
        list_environments()
        return
    if script is None:
        raise UsageError("name a script", hint="torchparity since repro.py --torch 2.12 2.13")
    json = writable(json)
    seconds = limits_of(timeout, None).seconds
    options = (*(("--index-url", index_url) if index_url else ()), *(pip_option or ()))
    try:
        with ReleaseWatcher(quiet=quiet) as watcher:
            found = torchparity.since(
                script,
                torch=torch or (),
                python=python or (),
                timeout=seconds,
                error=error,
                pip_options=options,
                out=json,
                progress=watcher.hear,
            )
    except KeyboardInterrupt:
        print(f"interrupted; {KEPT}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    from torchparity.report.releases import render_since

    render_since(found, printing())
    raise typer.Exit(found.exit_code)


def list_environments() -> None:
    """Print the environments of the cache."""
    from torchparity.releases.environments import cache_folder, environments
    from torchparity.report.releases import render_environments

    folder = cache_folder()
    render_environments(environments(folder), str(folder), printing())


class ReleaseWatcher(Watcher):
    """Progress on stderr: which release of how many, and what is being done with it."""

    def __enter__(self) -> ReleaseWatcher:
        super().__enter__()
        return self

    def hear(self, event: Progress) -> None:
        """Show what is being done with a release."""
        self.say(f"{event.run} of {event.runs}  {event.name}")
