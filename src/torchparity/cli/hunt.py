"""`torchparity hunt`: programs are made, compiled and judged; what differs is handed over as scripts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import torchparity
from torchparity.cli.options import Quiet
from torchparity.cli.outputs import printing
from torchparity.cli.progress import Watcher
from torchparity.cli.subjects import at_least_one
from torchparity.errors import UsageError
from torchparity.report.hunt import write_hunt
from torchparity.verbs.report import hunt_in

if TYPE_CHECKING:
    from torchparity.hunting.store import Store

FINDS = Path("finds")

Out = Annotated[Path | None, typer.Option("--out", help="Folder of a new hunt; finds by default.", show_default=False)]
Resume = Annotated[
    Path | None, typer.Option("--resume", help="Go on with the hunt in this folder.", show_default=False)
]
Minutes = Annotated[float, typer.Option("--minutes", help="How long to hunt.")]
Programs = Annotated[int | None, typer.Option("--programs", help="Stop after so many programs.", show_default=False)]
Seed = Annotated[int, typer.Option("--seed", help="Where the programs of a new hunt begin.")]
Workers = Annotated[int, typer.Option("--workers", help="Processes at once.")]
Known = Annotated[
    Path | None, typer.Option("--known", help="A list of known bugs in the place of ours (TOML).", show_default=False)
]
Since = Annotated[
    list[str] | None,
    typer.Option("--since", help="A release of torch to run each new script in; repeatable.", show_default=False),
]
Around = Annotated[
    str | None,
    typer.Option("--around", help="A model, as file.py:name: vary stretches of its graphs.", show_default=False),
]
Operators = Annotated[
    bool, typer.Option("--operators/--no-operators", help="Begin with samples of PyTorch's operator database, too.")
]
Special = Annotated[bool, typer.Option("--special", help="Put Inf, NaN, -0.0 and extreme values into inputs.")]
Backend = Annotated[str, typer.Option("--backend", help="What compiles the programs.")]


def hunt(
    out: Out = None,
    resume: Resume = None,
    minutes: Minutes = 10.0,
    programs: Programs = None,
    seed: Seed = 0,
    workers: Workers = 2,
    known: Known = None,
    since: Since = None,
    around: Around = None,
    operators: Operators = True,
    special: Special = False,
    backend: Backend = "inductor",
    quiet: Quiet = False,
) -> None:
    """Make programs, compile them, and hand over new bugs of the compiler, each as a script that anyone can run.

    Everything is kept as it is found: a hunt that was stopped or killed goes on with --resume.
    Exit code: 0 no bug was found, 1 bugs were found, 2 usage, 130 interrupted (what was found is kept).
    """
    if out is not None and resume is not None:
        raise UsageError("a hunt begins or goes on", hint="give --out for a new one, or --resume for one that is there")
    if not minutes > 0:
        raise UsageError(f"{minutes:g} minutes are no time to hunt", hint="--minutes takes a number over 0")
    at_least_one(workers=workers, programs=programs)
    folder = resume or out or FINDS
    watcher = HuntWatcher(quiet=quiet)
    with watcher:
        store = torchparity.hunt(
            folder,
            minutes=minutes,
            programs=programs,
            seed=seed,
            workers=workers,
            resume=resume is not None,
            known=known,
            releases=since or (),
            around=around,
            operators=operators,
            special=special,
            options={"backend": backend} if backend != "inductor" else {},
            hear=watcher.hear,
        )
    tell(store, folder)
    raise typer.Exit(1 if store.bugs() else 0)


def tell(store: Store, folder: Path) -> None:
    """Write the page, and print the bugs, what became of the programs, and what is left to do."""
    bugs, judged, waiting = store.bugs(), store.statuses(), len(store.finds("new"))
    summary = hunt_in(folder)
    page = write_hunt(folder, summary) if summary is not None else None
    lines = [f"{bug.severity:10} {bug.name}{f', known upstream: #{bug.known}' if bug.known else ''}" for bug in bugs]
    told = ", ".join(f"{count} {status}" for status, count in judged.most_common())
    lines.append(f"{judged.total()} programs ({told}); {len(bugs)} bugs in {folder}/bugs")
    if waiting:
        lines.append(f"{waiting} finds are not looked into yet: `torchparity hunt --resume {folder}` goes on")
    lines += [told] if (told := store.fact("operators")) else []
    console = printing()
    for line in [*lines, f"page: {page}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


class HuntWatcher(Watcher):
    """Progress of a hunt on stderr: programs, programs a minute, finds that wait, bugs."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.first: int | None = None
        self.told = -1

    def hear(self, store: Store) -> None:
        """Tell how far the hunt is; every hundred programs where stderr is no terminal."""
        judged = store.statuses().total()
        self.first = judged if self.first is None else self.first
        minutes = (time.monotonic() - self.began) / 60
        rate = (judged - self.first) / minutes if minutes > 0 else 0.0
        finds = store.finds()
        waiting = sum(find.state == "new" for find in finds)
        line = f"{judged} programs, {rate:.0f} a minute; {len(finds)} finds, {waiting} to look into; "
        line += f"{len(store.bugs())} bugs"
        if self.spinner is not None:
            self.spinner.update(line)
        elif not self.quiet and judged // 100 > self.told:
            self.told = judged // 100
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
