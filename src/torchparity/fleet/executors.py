"""Who runs the cells of a sweep: processes of this machine. A cluster is another one, in `cluster.py`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torchparity.compilers.recipe import recipe_plain
from torchparity.errors import ParityError, ResourceError
from torchparity.fleet.cells import Cell
from torchparity.fleet.jobs import CELL_JOB, FACTS_JOB, PRELOAD, request_of
from torchparity.judge.isolated import describe, verdict_of
from torchparity.records import Failure, Status, Verdict
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

FACTS_LIMITS = Limits(seconds=300.0)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was said of a cell, and the memory that it took, in bytes."""

    verdict: Verdict
    peak: int = 0


class Executor(Protocol):
    """Runs cells, several at once."""

    width: int

    def facts(self) -> dict[str, Any]:
        """Say what the environment is that cells run in."""

    def submit(self, cell: Cell) -> Future[Answer]:
        """Run a cell; whatever it does, there is an answer."""

    def close(self) -> None:
        """Stop what runs."""


class Local:
    """Runs cells in processes of this machine, with the interpreter that is given."""

    def __init__(self, base: Path, *, workers: int, python: str | None = None) -> None:
        self.base, self.width, self.python = base, workers, python
        self.pool = Pool(workers=workers, preload=PRELOAD, python=python)

    def facts(self) -> dict[str, Any]:
        """Say what the environment is that cells run in."""
        outcome = self.pool.run(FACTS_JOB, {}, limits=FACTS_LIMITS)
        if outcome.ending is not Ending.RETURNED:
            raise ResourceError(
                f"{self.python or 'this interpreter'} {describe(outcome)}",
                hint="give the interpreter of an environment that has torch 2.11 or newer",
            )
        found: dict[str, Any] = outcome.value["facts"]
        return found

    def submit(self, cell: Cell) -> Future[Answer]:
        """Run a cell in a process of its own, under its limits."""
        done: Future[Answer] = Future()
        limits = Limits(seconds=cell.seconds, memory=cell.memory)
        running = self.pool.submit(CELL_JOB, payload_of(cell, self.base), limits=limits)
        running.add_done_callback(passing_on(cell, done))
        return done

    def close(self) -> None:
        """Kill what runs, at once."""
        self.pool.close()


def payload_of(cell: Cell, base: Path) -> dict[str, Any]:
    """Return what a worker is told of a cell."""
    return {"cell": asdict(cell), "base": str(base.resolve())}


def passing_on(cell: Cell, done: Future[Answer]) -> Callable[[Future[Outcome]], None]:
    """Return what turns a worker's outcome into an answer."""

    def heard(running: Future[Outcome]) -> None:
        try:
            done.set_result(answer_of(cell, running.result()))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer is to see it
            done.set_exception(error)

    return heard


def answer_of(cell: Cell, outcome: Outcome) -> Answer:
    """Turn however a worker ended into an answer; raise where no worker can be had, or nobody wants an answer."""
    if outcome.ending is Ending.NOT_STARTED:
        raise ResourceError(f"no worker can be had: it {describe(outcome)}", hint="--resume goes on from here")
    peak = int(outcome.value.get("peak", 0)) if outcome.ending is Ending.RETURNED else 0
    return Answer(verdict=cell_verdict(cell, outcome), peak=peak)


def cell_verdict(cell: Cell, outcome: Outcome) -> Verdict:
    """Return the verdict on a cell; a target that cannot be loaded is UNKNOWN, with the reason."""
    backend = recipe_plain(request_of(cell)).backend_name()
    try:
        return verdict_of(outcome, subject=cell.title, backend=backend)
    except ParityError as error:
        return Verdict(
            status=Status.UNKNOWN,
            reasons=(f"{error.message} ({error.hint})",),
            runs=(),
            recipe={"backend": backend},
            environment={},
            subject=cell.title,
            failure=Failure(type=type(error).__name__, message=error.message, stage="target"),
            seconds=outcome.seconds,
        )
