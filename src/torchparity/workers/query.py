"""One running query as the server sees it: its process, its two pipes, and what has come through them."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchparity.workers import processes
from torchparity.workers.frames import Frame, FrameReader
from torchparity.workers.outcome import OUTPUT_BYTES, Ending

CHUNK = 1 << 20
PHASE_LENGTH = 1000
BEGUN = "begun"
# A child that waited has so long to begin, whatever the limit of the query. It must be less than the grace that a pool
# gives its server: then the query still has all of its time in another child.
BEGIN_SECONDS = 8.0
ANSWERS = {ending.value: ending for ending in (Ending.RETURNED, Ending.RAISED, Ending.OUT_OF_MEMORY)}


class Pipe:
    """The reading end of a pipe whose other end a candidate holds."""

    def __init__(self, descriptor: int, *, selector: selectors.BaseSelector, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor: int | None = descriptor
        self.selector = selector
        self.take = take
        selector.register(descriptor, selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Take one piece; return whether there may be another. At its end the pipe closes itself."""
        if self.descriptor is None:
            return False
        try:
            data = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self.take(data)
        else:
            self.close()
        return bool(data)

    def close(self) -> None:
        """Stop listening."""
        if self.descriptor is not None:
            self.selector.unregister(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None


@dataclass
class Query:
    """One running child, and what has come from it so far."""

    number: int
    pid: int
    folder: Path
    seconds: float
    memory: int | None
    # How many processes the kernel had killed for want of memory before this one began.
    victims: int
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    reader: FrameReader = field(default_factory=FrameReader)
    tail: bytearray = field(default_factory=bytearray)
    pipes: tuple[Pipe, ...] = ()
    phase: str = ""
    phase_is_news: bool = False
    result: Frame | None = None
    cut_short: Ending | None = None
    # What was asked, until the child says that it has begun with it: one that waited may die before.
    asked: Frame | None = None
    # Whether its child had waited for it.
    waited: bool = False

    def listen(self, selector: selectors.BaseSelector, *, answer: int, output: int) -> None:
        """Read what the child says and what it prints."""
        self.pipes = (
            Pipe(answer, selector=selector, take=self.hear),
            Pipe(output, selector=selector, take=self.keep_tail),
        )

    def hear(self, data: bytes) -> None:
        """Take what the child says. The first answer counts; later ones are somebody else's."""
        for frame in self.reader.feed(data):
            if frame.kind == "phase":
                self.phase = str(frame.header.get("phase", ""))[:PHASE_LENGTH]
                self.phase_is_news = True
            elif frame.kind == BEGUN:
                self.asked = None
            elif frame.kind in ANSWERS and self.result is None:
                self.result = frame

    def keep_tail(self, data: bytes) -> None:
        """Keep the end of the output."""
        self.tail += data
        if len(self.tail) > 2 * OUTPUT_BYTES:
            del self.tail[:-OUTPUT_BYTES]

    def tree(self) -> set[int]:
        """Return the processes of the query. Its child is the parent of its orphans, so they are all here."""
        return {self.pid} | processes.descendants(self.pid)

    def broken_limit(self) -> Ending | None:
        """Return what the query has used up, if anything."""
        seconds = self.seconds if self.asked is None else BEGIN_SECONDS
        if time.monotonic() > self.started + seconds:
            return Ending.TIMED_OUT
        if self.memory is not None and processes.exceeds(self.tree(), self.memory):
            return Ending.OUT_OF_MEMORY
        return None

    def drain(self) -> None:
        """Take all that is left in the pipes, and close them."""
        for pipe in self.pipes:
            while pipe.read():
                pass
            pipe.close()

    def ending(self, status: int) -> Ending:
        """Decide how the query ended. An answer counts only from a child that then left in good order."""
        if self.cut_short is not None:
            return self.cut_short
        if os.WIFSIGNALED(status):
            starved = os.WTERMSIG(status) == signal.SIGKILL and processes.memory_victims() > self.victims
            return Ending.OUT_OF_MEMORY if starved else Ending.KILLED
        if os.WEXITSTATUS(status) == 0 and self.result is not None and not self.reader.broken:
            return ANSWERS[self.result.kind]
        return Ending.EXITED

    def facts(self, status: int) -> dict[str, Any]:
        """Return what the pool is told, the answer's body apart."""
        return {
            "number": self.number,
            "ending": self.ending(status).value,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "phase": self.phase,
            "seconds": self.ended - self.started,
            "output": bytes(self.tail[-OUTPUT_BYTES:]).decode("utf-8", "replace"),
        }
