"""`hunt`: make programs, compile them, and hand over new bugs of the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compilers.recipe import recipe_of
from torchparity.errors import ParityError, TargetError, UsageError
from torchparity.hunting.campaign import OPERATORS, Campaign, Plan, places
from torchparity.hunting.inquiry import Inquiry, Others
from torchparity.hunting.jobs import PRELOAD
from torchparity.hunting.openings import FILE as OPENINGS
from torchparity.hunting.roots import KNOWN, read_known
from torchparity.hunting.store import FILE, Store
from torchparity.records import Blame, Since
from torchparity.releases.versions import read_releases
from torchparity.repro.folders import alone_in
from torchparity.request import request_for
from torchparity.run.target import Target
from torchparity.verbs.apart import answered, ask
from torchparity.verbs.blame import blame
from torchparity.verbs.since import since
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool
from torchparity.workers.together import Together

BLAME_LIMITS = Limits(seconds=300.0)
# Which model a hunt goes around, among its facts.
AROUND = "around"
# So large a share of the programs begins with an operator of PyTorch's database.
OPERATORS_SHARE = 0.35


def hunt(
    out: Path | str,
    *,
    minutes: float = 10.0,
    programs: int | None = None,
    seed: int = 0,
    workers: int = 2,
    resume: bool = False,
    known: Path | str | None = None,
    releases: Sequence[str] = (),
    around: str | None = None,
    operators: bool = True,
    special: bool = False,
    options: Mapping[str, Any] | None = None,
    hear: Callable[[Store], None] | None = None,
) -> Store:
    """Hunt for some minutes, or for so many programs; every bug gets a folder below `out`. Return what was found.

    Programs come from the grammar, and begin with samples of PyTorch's operator database (`operators`; it needs
    `expecttest`); with `around`, the name of a model, they are variations of stretches of its graphs. `special` puts
    Inf, NaN, -0.0 and extreme values into inputs. `releases` are versions of torch in whose environments the script of
    every new bug is run (as `since` does).
    """
    folder = Path(out)
    refuse_folder(folder, resume=resume, around=around)
    listed = read_known(Path(known or KNOWN))
    read_releases(releases)  # What is no release is refused before it begins.
    recipe_of(request_for("check", dict(options or {})))  # What cannot be compiled with is refused before it begins.
    with (
        alone_in(folder, "hunt"),
        Together(max(1, workers // 2)) as together,
        Pool(workers=places(workers), preload=(*PRELOAD, "torchparity.verbs.jobs")) as pool,
    ):
        if not resume:
            (folder / OPENINGS).unlink(missing_ok=True)  # Of a hunt that could not begin.
        if around is not None:
            stretches_apart(around, folder, pool)  # Where there are none, no hunt has begun.
        store = Store(folder, create=not resume)
        store.set_fact("torch", torch.__version__)
        store.set_fact("began", store.fact("began", str(time.time())))
        store.set_fact(AROUND, around or store.fact(AROUND))
        around = store.fact(AROUND) or None
        operators = around is None and operators
        plan = Plan(
            minutes=minutes, programs=programs, seed=seed, workers=workers, options=dict(options or {}),
            share=1.0 if around is not None else OPERATORS_SHARE, special=special,
            operators=operators_there(store) if operators else False, builder=together.address,
        )  # fmt: skip
        inquiry = Inquiry(
            store, pool, Others(blame=blaming(pool), since=dating(releases)), listed, builder=together.address
        )
        try:
            Campaign(store, pool, inquiry, plan, hear).run()
        finally:
            inquiry.close()
    return store


def refuse_folder(folder: Path, *, resume: bool, around: str | None) -> None:
    """Raise where a folder is not what a hunt can begin in, or go on in."""
    if resume != (folder / FILE).is_file():
        raise UsageError(
            f"{folder} holds no hunt" if resume else f"{folder} holds a hunt already",
            hint="`torchparity hunt --out FOLDER` begins one, `torchparity hunt --resume FOLDER` goes on",
        )
    if resume and around is not None:
        raise UsageError("a hunt goes on around what it began with", hint="leave out --around, or begin another hunt")


def operators_there(store: Store) -> bool:
    """Tell whether PyTorch's operators can be drawn from; where they cannot, that is a fact of the hunt."""
    if torchapi.has_operator_database():
        return True
    store.set_fact(OPERATORS, "PyTorch's operators are left out: pip install torchparity[hunt]")
    return False


def stretches_apart(around: str, folder: Path, pool: Pool) -> None:
    """Write stretches of a model's graphs into the folder of a new hunt, from a worker."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = ask("openings", Target(around), request_for("capture", {}), pool, BLAME_LIMITS, folder=folder)
    if not answered(outcome, "capturing the model")["openings"]:
        (folder / OPENINGS).unlink(missing_ok=True)
        raise TargetError(
            f"{around} has no graph with operations to vary",
            hint="`torchparity explain` shows what Dynamo makes of a model",
        )


def blaming(pool: Pool) -> Callable[[Path, Mapping[str, Any]], Blame | None]:
    """Return what says which stage of the compiler a program's failure comes from; None where nobody can be blamed."""

    def ask(place: Path, options: Mapping[str, Any]) -> Blame | None:
        try:
            return blame(f"{place}:make", pool=pool, limits=BLAME_LIMITS, **dict(options))
        except ParityError:
            return None

    return ask


def dating(releases: Sequence[str]) -> Callable[[Path], Since | None]:
    """Return what says since which of some releases a script fails; None where nobody asks, or nobody can tell."""

    def ask(script: Path) -> Since | None:
        try:
            return since(script, torch=releases) if releases else None
        except ParityError:
            return None

    return ask
