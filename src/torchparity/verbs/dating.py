"""Since which release of torch a cell of a sweep fails: asked in environments of released versions.

Where a diagnosis has left a script of torch alone, that is asked. Otherwise the cell itself is checked in each release;
a model that needs more than torch has no answer there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torchparity.errors import ParityError
from torchparity.fleet.executors import Answer, Local
from torchparity.fleet.store import Judged, Store
from torchparity.records import ReleaseAnswer, ReleaseState, Status
from torchparity.releases.environments import environment_for
from torchparity.releases.since import Question, together
from torchparity.report.releases import conclusion
from torchparity.repro.source import SCRIPT
from torchparity.verbs.since import since

STATES = {
    Status.SAME: ReleaseState.WORKS,
    Status.DIFFERS: ReleaseState.FAILS,
    Status.UNKNOWN: ReleaseState.UNKNOWN,
}


def date_failures(store: Store, wanted: Iterable[int], releases: Sequence[str], *, base: Path, workers: int) -> None:
    """Ask since when some cells fail, and keep the answer beside what else was found out about each."""
    numbers = set(wanted)
    cells = [cell for cell in store.cells() if cell.id in numbers and "since" not in cell.finding]
    scripted = [cell for cell in cells if cell.finding.get("plain")]
    for cell in scripted:
        keep(store, cell, of_script(str(cell.finding["script"]), releases))
    others = [cell for cell in cells if not cell.finding.get("plain")]
    answers: dict[int, list[ReleaseAnswer]] = {cell.id: [] for cell in others}
    for release in releases if others else ():
        for cell, answer in zip(others, in_release(others, release, base=base, workers=workers), strict=True):
            answers[cell.id].append(answer)
    for cell in others:
        question = Question(script=Path(cell.cell.title), seconds=cell.cell.seconds, error=cell.kind)
        keep(store, cell, conclusion(together(question, answers[cell.id], seconds=0.0)))


def keep(store: Store, cell: Judged, told: str) -> None:
    """Keep since when a cell fails."""
    store.add_finding(cell.id, {**dict(cell.finding), "since": told})


def of_script(text: str, releases: Sequence[str]) -> str:
    """Say since when a script fails."""
    with tempfile.TemporaryDirectory(prefix="torchparity-") as folder:
        place = Path(folder, SCRIPT)
        place.write_text(text, encoding="utf-8")
        try:
            return conclusion(since(place, torch=releases))
        except ParityError as error:
            return error.message


def in_release(cells: Sequence[Judged], release: str, *, base: Path, workers: int) -> list[ReleaseAnswer]:
    """Check cells in the environment of a release; who cannot be checked there has no answer."""
    try:
        environment = environment_for(release)
        executor = Local(base, workers=workers, python=environment.interpreter)
    except ParityError as error:
        return [ReleaseAnswer(asked=release, state=ReleaseState.UNKNOWN, why=error.message) for _ in cells]
    try:
        running = [executor.submit(cell.cell) for cell in cells]
        return [told_by(future, release, environment.torch, environment.interpreter) for future in running]
    finally:
        executor.close()


def told_by(future: Future[Answer], release: str, version: str, python: str) -> ReleaseAnswer:
    """Return what became of a cell in a release, as an answer about that release."""
    facts: dict[str, Any] = {"asked": release, "torch": version, "python": python}
    try:
        verdict = future.result().verdict
    except ParityError as error:
        return ReleaseAnswer(state=ReleaseState.UNKNOWN, why=error.message, **facts)
    why = next(iter(verdict.reasons), "")
    return ReleaseAnswer(state=STATES[verdict.status], why=why, error=verdict.kind, seconds=verdict.seconds, **facts)
