"""A sweep: cells are run until each has its verdict, the longest first; what is known is on disk at every moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from torchparity.fleet.cells import GUESS_SECONDS, Cell
from torchparity.fleet.executors import Answer, Executor
from torchparity.fleet.store import Judged, Store

TICK = 0.5
# The memory that a cell is taken to need before anybody has seen it.
GUESS_MEMORY = 1 << 30
# The share of the machine's free memory that cells may take together.
SHARE = 0.85


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a sweep is: cells that have a verdict, of how many; seconds that are left, about; what runs now."""

    done: int
    cells: int
    statuses: dict[str, int]
    seconds_left: float
    running: tuple[str, ...]
    newest: Judged | None = None


def repeated(cells: Sequence[Cell], times: int) -> list[Cell]:
    """Return every cell so many times: all of them once, then all again."""
    return [replace(cell, repeat=number) for number in range(times) for cell in cells]


class Sweep:
    """Runs the waiting cells of one environment."""

    def __init__(
        self, store: Store, executor: Executor, place: int, hear: Callable[[Progress], None] | None = None
    ) -> None:
        self.store, self.executor, self.place, self.hear = store, executor, place, hear
        expected = store.expected()
        everyone = store.cells()
        self.statuses: dict[str, int] = {}
        for cell in everyone:
            if cell.status:
                self.statuses[cell.status] = self.statuses.get(cell.status, 0) + 1
        self.cells = len(everyone)
        self.elsewhere = sum(not cell.status and cell.environment != place for cell in everyone)
        self.seconds = {cell.id: expected.get(cell.cell.key, (GUESS_SECONDS, 0))[0] for cell in everyone}
        self.memory = {
            cell.id: expected.get(cell.cell.key, (0.0, 0))[1] or cell.cell.memory or GUESS_MEMORY for cell in everyone
        }
        self.queue = sorted(
            (cell for cell in everyone if not cell.status and cell.environment == place),
            key=lambda cell: -self.seconds[cell.id],
        )
        self.room = int(free_memory() * SHARE)
        self.running: dict[Future[Answer], Judged] = {}

    def run(self) -> None:
        """Go on until every cell of this environment has a verdict."""
        while self.queue or self.running:
            while self.queue and len(self.running) < self.executor.width:
                chosen = self._next()
                if chosen is None:
                    break
                self.queue.remove(chosen)
                self.running[self.executor.submit(chosen.cell)] = chosen
            done, _ = wait(self.running, timeout=TICK, return_when=FIRST_COMPLETED)
            newest = None
            for future in done:
                newest = self._keep(self.running.pop(future), future.result())
            self._tell(newest)

    def _next(self) -> Judged | None:
        """Return the longest cell that there is memory for; where nothing runs, one cell always fits."""
        taken = sum(self.memory[cell.id] for cell in self.running.values())
        if not self.running:
            return self.queue[0]
        return next((cell for cell in self.queue if taken + self.memory[cell.id] <= self.room), None)

    def _keep(self, cell: Judged, answer: Answer) -> Judged:
        if self.store.add(cell.id, answer.verdict, time.time(), peak=answer.peak):
            word = answer.verdict.status.value
            self.statuses[word] = self.statuses.get(word, 0) + 1
        return replace(
            cell,
            status=answer.verdict.status.value,
            kind=answer.verdict.kind,
            severity=answer.verdict.severity.value,
            reason=next(iter(answer.verdict.reasons), ""),
            seconds=answer.verdict.seconds,
        )

    def _tell(self, newest: Judged | None) -> None:
        if self.hear is None:
            return
        ahead = [*self.queue, *self.running.values()]
        left = sum(self.seconds[cell.id] for cell in ahead) / max(1, self.executor.width)
        self.hear(
            Progress(
                done=sum(self.statuses.values()),
                cells=self.cells,
                statuses=dict(self.statuses),
                seconds_left=left + self.elsewhere * GUESS_SECONDS / max(1, self.executor.width),
                running=tuple(cell.cell.title for cell in self.running.values()),
                newest=newest,
            )
        )


def free_memory() -> int:
    """Return how much memory this machine has free, in bytes."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
