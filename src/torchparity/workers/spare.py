"""Processes that wait for a query: forked ahead of it, and prepared with what no fork can inherit (a device, say).

Each takes one query and ends with it, so that nothing of a query is there for the next.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchparity.workers import processes
from torchparity.workers.frames import Frame, pack

# The file, in a query's own folder, that holds what is asked.
ORDER = "query"
# So many that die while they wait, one after the other, and no more are made: each query then starts by itself.
DEATHS = 3


@dataclass(frozen=True, kw_only=True)
class Spare:
    """A process that waits for its query, or was forked for one, and the server's ends of its pipes."""

    pid: int
    folder: Path
    answer: int
    output: int
    orders: int

    def order(self, frame: Frame) -> bool:
        """Give it its query; by a file, since it reads nothing before it is ready. Return False where it is gone."""
        fields = {name: value for name, value in frame.header.items() if name != "kind"}
        try:
            (self.folder / ORDER).write_bytes(pack(frame.kind, frame.body, **fields))
            os.write(self.orders, f"{self.folder / ORDER}\n".encode())
        except OSError:
            self.discard()
            return False
        os.close(self.orders)
        return True

    def discard(self) -> None:
        """Close all that belongs to it; without its pipe it leaves."""
        for descriptor in (self.answer, self.output, self.orders):
            os.close(descriptor)
        processes.remove_folder(self.folder)


@dataclass(kw_only=True)
class Spares:
    """The processes that wait, the oldest first: at most so many."""

    most: int = 0
    prepare: Callable[[], None] = lambda: None
    waiting: deque[Spare] = field(default_factory=deque)
    deaths: int = 0

    @property
    def wants_another(self) -> bool:
        """Whether one more is to be made."""
        return len(self.waiting) < self.most and self.deaths < DEATHS

    def add(self, spare: Spare) -> None:
        """Have one more wait."""
        self.waiting.append(spare)

    def take(self) -> Spare | None:
        """Take the one that has waited longest, if there is one."""
        return self.waiting.popleft() if self.waiting else None

    def bury(self, pid: int) -> None:
        """Forget one that has ended without a query."""
        for spare in [spare for spare in self.waiting if spare.pid == pid]:
            self.waiting.remove(spare)
            self.deaths += 1
            spare.discard()

    def pids(self) -> set[int]:
        """Return the processes that wait."""
        return {spare.pid for spare in self.waiting}

    def descriptors(self) -> list[int]:
        """Return the descriptors that no other child is to hold."""
        return [end for spare in self.waiting for end in (spare.answer, spare.output, spare.orders)]
