"""`sweep`: many models in many ways, each with its verdict; and what stands beside it: baseline, query, report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from torchparity.errors import ParityError, UsageError
from torchparity.fleet import baseline as baselines
from torchparity.fleet.cells import Cell
from torchparity.fleet.executors import Executor, Local
from torchparity.fleet.jobs import request_of, target_of
from torchparity.fleet.ready import ready_made
from torchparity.fleet.store import FILE, Judged, Store
from torchparity.fleet.suite import cells_of, read_suite
from torchparity.fleet.summary import summary_of
from torchparity.fleet.sweep import Progress, Sweep, repeated
from torchparity.records import Severity, Status, SweepSummary
from torchparity.releases.versions import read_releases
from torchparity.repro.folders import alone_in
from torchparity.verbs.dating import date_failures
from torchparity.verbs.diagnose import diagnose
from torchparity.verbs.report import baseline_place
from torchparity.workers.pool import default_workers

DIAGNOSES = "diagnoses"
Listener = Callable[[Progress], None]


def cells_in(suite: str | Path | None, ready: str | None = None) -> tuple[list[Cell], str, Path]:
    """Return the cells of a suite or of a ready-made one, its name, and the folder that its files are seen from."""
    if (suite is None) == (ready is None):
        raise UsageError("a sweep has one suite", hint="name a file, or give --suite with a ready-made one")
    if ready is not None:
        return cells_of(ready_made(ready), base=Path.cwd(), name=ready), ready, Path.cwd()
    assert suite is not None
    path = Path(suite)
    return read_suite(path), str(path), path.resolve().parent


def sweep(
    suite: str | Path | None = None,
    *,
    out: str | Path,
    ready: str | None = None,
    resume: bool = False,
    again: Sequence[str] = (),
    repeat: int = 1,
    workers: int | None = None,
    pythons: Sequence[str | Path] = (),
    ray: str | None = None,
    baseline: str | Path | None = None,
    diagnose_new: int = 0,
    since: Sequence[str] = (),
    hear: Listener | None = None,
) -> SweepSummary:
    """Check every cell of a suite in a process of its own; return what was found. What is known is kept as it comes.

    `ready` names a ready-made suite. With `resume` the last sweep of the folder goes on; cells that came out as `again`
    says are judged once more. Each cell is checked `repeat` times. `pythons` are interpreters of environments: every
    cell runs in each, and the summary tells what changed from the first to the last. `ray` is the address of a cluster
    (`auto` for the one at hand). `diagnose_new` of the worst failures that the baseline does not know are diagnosed.
    `since` are releases of torch in which new failures are asked about: the summary says which of them broke each.
    """
    folder = Path(out)
    if resume and not (folder / FILE).is_file():
        raise UsageError(f"{folder} holds no sweep", hint="`torchparity sweep SUITE --out FOLDER` begins one")
    if resume and (suite is not None or ready is not None):
        raise UsageError("a sweep that goes on has its suite already", hint="leave the suite out, or --resume")
    if ray is not None and pythons:
        raise UsageError("a cluster has the environments of its nodes", hint="leave out --ray, or --python")
    read_releases(since)  # What is no release is refused before it begins.
    begun = None if resume else cells_in(suite, ready)
    known = baselines.read_baseline(baseline_place(folder, baseline))
    width = workers or default_workers()
    with alone_in(folder, "sweep"):
        store = Store(folder, create=True)
        try:
            if begun is not None:
                begin(store, begun, repeat=repeat, pythons=pythons)
            elif again:
                store.again(again)
            run_all(store, workers=width, ray=ray, hear=hear)
            store.end(time.time())
            if diagnose_new:
                diagnose_worst(store, known, diagnose_new)
            found = summary_of(store, known)
            if since:
                date_failures(store, new_failures(found), since, base=base_of(store), workers=width)
                found = summary_of(store, known)
            return found
        finally:
            store.close()


def new_failures(found: SweepSummary) -> list[int]:
    """Return the cells that fail anew: between twins, or else as the baseline says."""
    differs = [cell for cell in found.failing if cell.status == Status.DIFFERS.value]
    if not found.changes:
        return [cell.id for cell in differs]
    new = {(change.title, change.options) for change in found.changes if change.word == "new failure"}
    return [cell.id for cell in differs if (cell.title, cell.options) in new]


def begin(store: Store, begun: tuple[list[Cell], str, Path], *, repeat: int, pythons: Sequence[str | Path]) -> None:
    """Begin a sweep in a folder, unless one there is not done."""
    cells, name, base = begun
    last = store.last()
    if last is not None and last["ended"] is None:
        raise UsageError(
            f"{store.folder} holds a sweep that is not done",
            hint=f"`torchparity sweep --resume {store.folder}` goes on with it; or give another folder",
        )
    given = [str(Path(python).absolute()) for python in pythons]  # Its links are not followed: a venv is one.
    for python in given:
        if not os.access(python, os.X_OK):
            raise UsageError(f"{python} is no interpreter", hint="give the path of a python, as envs/2.12/bin/python")
    if len(given) == 1 or len(set(given)) < len(given):
        raise UsageError("twins are two environments", hint="give --python twice, with two interpreters")
    store.begin(name, given or [""], repeated(cells, repeat), {"base": str(base)}, time.time())


def run_all(store: Store, *, workers: int, ray: str | None, hear: Listener | None) -> None:
    """Run what waits, environment by environment: side by side, they would make each other slower."""
    base = base_of(store)
    for place, python in enumerate(store.pythons()):
        if not any(cell.environment == place for cell in store.waiting()):
            continue
        executor = executor_for(base, workers=workers, python=python or None, ray=ray)
        try:
            store.set_environment(place, executor.facts())
            Sweep(store, executor, place, hear).run()
        finally:
            executor.close()


def executor_for(base: Path, *, workers: int, python: str | None, ray: str | None) -> Executor:
    """Return who runs cells: processes here, or a cluster."""
    if ray is None:
        return Local(base, workers=workers, python=python)
    from torchparity.fleet.cluster import Cluster

    return Cluster(base, address=ray)


def base_of(store: Store) -> Path:
    """Return the folder that the targets of the last sweep are seen from."""
    run = store.last()
    base = Path(json.loads(run["facts"])["base"]) if run is not None else Path.cwd()
    if not base.is_dir():
        raise UsageError(f"the suite's folder {base} is gone", hint="put it back, or begin another sweep")
    return base


# --- what stands beside it -----------------------------------------------------------------------


def update_baseline(
    folder: Path | str,
    *,
    baseline: str | Path | None = None,
    update: bool = False,
    until: date | None = None,
    reason: str = "",
) -> tuple[baselines.Comparison, Path]:
    """Hold the last sweep of a folder against a baseline; with `update`, accept what it has found."""
    place = baseline_place(Path(folder), baseline)
    known = baselines.read_baseline(place)
    store = Store(Path(folder))
    try:
        cells = store.cells()
        last = max((cell.environment for cell in cells), default=0)
        cells = [cell for cell in cells if cell.environment == last]
        comparison = baselines.compare(cells, store, known, datetime.now(UTC).date())
        if update:
            baselines.write_baseline(place, baselines.updated(comparison, store, known, until=until, reason=reason))
        return comparison, place
    finally:
        store.close()


def diagnose_worst(store: Store, known: Sequence[baselines.Known], most: int) -> None:
    """Diagnose the worst failures that are not accepted, one for each root cause; what they say is kept."""
    summary = summary_of(store, known)
    wanted = {cell.id for cell in summary.failing if cell.status == Status.DIFFERS.value}
    cells = [cell for cell in store.cells() if cell.id in wanted and "folder" not in cell.finding]
    cells.sort(key=lambda cell: -Severity(cell.severity).rank)
    base, seen, done = base_of(store), set[tuple[str, str, str]](), 0
    here = Path.cwd()
    for cell in cells:
        if done == most:
            return
        os.chdir(base)
        try:
            found = diagnosed(cell, (here / store.folder / DIAGNOSES / f"{cell.id}").resolve())
        except ParityError as error:
            found = {"folder": "", "note": error.message}
        finally:
            os.chdir(here)
        root = (cell.kind, str(found.get("stage", "")), str(found.get("part", "")))
        if root in seen and root[1]:
            found = {**found, "same_as": "another cell of this sweep"}
        else:
            done += 1
        seen.add(root)
        store.add_finding(cell.id, found)


def diagnosed(cell: Judged, folder: Path) -> dict[str, Any]:
    """Diagnose a cell into a folder; return what a sweep keeps of it."""
    request = request_of(cell.cell)
    found = diagnose(target_of(cell.cell), out=folder, **request.given())
    blame, culprit = found.blame, found.located.culprit if found.located is not None else None
    return {
        "folder": f"{folder.parent.name}/{folder.name}",  # As seen from the page.
        "stage": blame.stage if blame is not None else "",
        "part": blame.part if blame is not None else "",
        "place": culprit.line.partition(" ")[0] if culprit is not None else "",
        "script": found.smallest.script if found.smallest is not None else "",
        "plain": found.smallest is not None and found.smallest.plain,
    }
