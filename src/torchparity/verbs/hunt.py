"""`hunt`: make programs, compile them, and hand over new bugs of the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchparity.compilers.recipe import recipe_of
from torchparity.errors import ParityError, UsageError
from torchparity.hunting.campaign import Campaign, Plan
from torchparity.hunting.inquiry import Inquiry, Others
from torchparity.hunting.jobs import PRELOAD
from torchparity.hunting.roots import KNOWN, read_known
from torchparity.hunting.store import FILE, Store
from torchparity.records import Blame, Since
from torchparity.releases.versions import read_releases
from torchparity.request import request_for
from torchparity.verbs.blame import blame
from torchparity.verbs.since import since
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

BLAME_LIMITS = Limits(seconds=300.0)


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
    options: Mapping[str, Any] | None = None,
    hear: Callable[[Store], None] | None = None,
) -> Store:
    """Hunt for some minutes, or for so many programs; every bug gets a folder below `out`. Return what was found.

    `releases` are versions of torch in whose environments the script of every new bug is run (as `since` does).
    """
    folder = Path(out)
    if resume != (folder / FILE).is_file():
        raise UsageError(
            f"{folder} holds no hunt" if resume else f"{folder} holds a hunt already",
            hint="`torchparity hunt --out FOLDER` begins one, `torchparity hunt --resume FOLDER` goes on",
        )
    listed = read_known(Path(known or KNOWN))
    read_releases(releases)  # What is no release is refused before it begins.
    recipe_of(request_for("check", dict(options or {})))  # What cannot be compiled with is refused before it begins.
    store = Store(folder, create=not resume)
    store.set_fact("torch", torch.__version__)
    store.set_fact("began", store.fact("began", str(time.time())))
    plan = Plan(minutes=minutes, programs=programs, seed=seed, workers=workers, options=dict(options or {}))
    with Pool(workers=workers, preload=(*PRELOAD, "torchparity.verbs.jobs")) as pool:
        inquiry = Inquiry(store, pool, Others(blame=blaming(pool), since=dating(releases)), listed)
        try:
            Campaign(store, pool, inquiry, plan, hear).run()
        finally:
            inquiry.close()
    return store


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
