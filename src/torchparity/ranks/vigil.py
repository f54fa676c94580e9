"""The watch that a rank keeps: it beats, sees others die, fall silent or take too long, and ends this process too.

A thread of its own, since the rank itself may be inside a collective that never returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from torchparity.ranks.talk import Ranks, leave, open_store, read
from torchparity.records import DIED, LATE, SILENT, STOPPED, UNKNOWN_CODE, UNREACHABLE, Loss
from torchparity.records.wire import record_from
from torchparity.workers import processes

INTERVAL = 0.25
# torchrun ends the others at once when one dies: so long is looked for who it was.
SEARCH = 2.0
# So long the ranks before this one have to print why they end.
TURN = 3.0
DIED_OF = 0x7F
# What another rank has said of itself may be so old.
BEHIND = 4 * INTERVAL
STDLIB = sysconfig.get_path("stdlib")

Tell = Callable[[Loss], None]


class Vigil:
    """Watches over one rank; `tell` is called on the first rank that is left, with why all of them end."""

    def __init__(self, ranks: Ranks, tell: Tell) -> None:
        self.ranks = ranks
        self.tell = tell
        self.store = open_store(ranks.place)
        self.home = home()
        self.started = time.monotonic()
        self.beats = 0
        self.heard: dict[int, tuple[int, float]] = {}
        self.peers: dict[int, tuple[int, int]] = {}
        self.deaths: dict[int, str] = {}
        self.stopped = 0.0
        self.watched = threading.main_thread().ident
        self.waker, self.woken = socket.socketpair()
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="torchparity-vigil", daemon=True)

    def start(self) -> None:
        """Watch from now on; a SIGTERM is heard by the watch, wherever the main thread is."""
        self.waker.setblocking(False)
        self.woken.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, ignore)
        self.thread.start()

    def finish(self) -> None:
        """Stop watching: the ranks have agreed, and the others must not take this one's end for a death."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends whoever is left when the first code is not 0.
        self.finished.set()
        self.thread.join(timeout=INTERVAL * 8)
        with contextlib.suppress(RuntimeError):
            self.ranks.say(f"left/{self.ranks.rank}")

    # --- the watch --------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self.finished.is_set():
                self._beat()
                end = read(self.store, "end")
                if end is not None:
                    self._end(record_from(Loss, end))
                self._look()
                self._sleep()
        except RuntimeError:  # The store is gone, and with it whoever served it: nobody can be asked who is left.
            if not self.finished.is_set():
                loss = Loss(kind=UNREACHABLE, code=UNKNOWN_CODE, limit=self.ranks.seconds)
                self.tell(loss)
                leave(loss.code)

    def _beat(self) -> None:
        """Tell the others that this process lives, and what it is at."""
        self.beats += 1
        told = {
            "count": self.beats,
            "pid": os.getpid(),
            "home": self.home,
            "line": line_of(self.watched),
            **self.ranks.standing(),
        }
        self.store.set(f"beat/{self.ranks.rank}", json.dumps(told))

    def _look(self) -> None:
        """Look after every other rank, and after this one."""
        now = time.monotonic()
        trouble: dict[int, tuple[str, str]] = {}
        standings = {}
        for rank in range(self.ranks.world):
            if rank == self.ranks.rank or self.store.check([f"left/{rank}"]):
                continue
            beat = read(self.store, f"beat/{rank}")
            count = int(beat["count"]) if beat else 0
            if self.heard.get(rank, (-1, 0.0))[0] != count:
                self.heard[rank] = (count, now)
            if beat is not None:
                standings[rank] = beat
                self._befriend(rank, beat)
            if rank in self.deaths:
                trouble[rank] = (DIED, self.deaths[rank])
            elif now - self.heard[rank][1] > self.ranks.allowed:
                trouble[rank] = (SILENT, "")
        if trouble:
            self.ranks.declare(self.store, DIED if DIED in {kind for kind, _ in trouble.values()} else SILENT, trouble)
            return
        self._mind_time(now, standings)

    def _mind_time(self, now: float, standings: dict[int, dict[str, Any]]) -> None:
        """See whether this rank has been in one phase for too long, or the whole has, or somebody stops it."""
        standings[self.ranks.rank] = self.ranks.standing()
        over = {
            rank: (LATE, "")
            for rank, standing in standings.items()
            if not standing["waits"] and standing["seconds"] > standing["allowed"] - BEHIND * (rank != self.ranks.rank)
        }
        if self.ranks.rank in over or now - self.started > self.ranks.limit:
            self.ranks.declare(self.store, LATE, over)
        elif self.stopped and now - self.stopped > SEARCH:
            self.ranks.declare(self.store, STOPPED, {self.ranks.rank: (STOPPED, "")})

    def _befriend(self, rank: int, beat: dict[str, Any]) -> None:
        """Watch the process of a rank on this machine: its death is seen at once, and what of."""
        if rank in self.peers or rank in self.deaths or beat["home"] != self.home or not hasattr(os, "pidfd_open"):
            return
        try:
            self.peers[rank] = (int(beat["pid"]), os.pidfd_open(int(beat["pid"])))
        except ProcessLookupError:
            self.deaths[rank] = ""
        except OSError:
            return  # Not to be watched here; its beats are.

    def _sleep(self) -> None:
        """Wait for a death, a signal, or the next beat."""
        watched = {descriptor: rank for rank, (_, descriptor) in self.peers.items()}
        signals = self.woken.fileno()
        ready, _, _ = select.select([signals, *watched], [], [], INTERVAL)
        for descriptor in set(ready) & set(watched):
            rank = watched[descriptor]
            pid, _ = self.peers.pop(rank)
            self.deaths[rank] = how_it_died(pid)  # At once: when torchrun has waited for it, nobody can tell any more.
            os.close(descriptor)
        if signals in ready:
            with contextlib.suppress(BlockingIOError):
                if signal.SIGTERM in self.woken.recv(64) and not self.stopped:
                    self.stopped = time.monotonic()

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, loss: Loss) -> None:
        """Print why all end, where it is this rank's turn, and end."""
        turn = loss.living.index(self.ranks.rank) if self.ranks.rank in loss.living else len(loss.living)
        deadline = time.monotonic() + turn * TURN
        while time.monotonic() < deadline and not self.store.check(["told"]):
            time.sleep(0.02)
        if not self.store.check(["told"]):
            self.tell(loss)
            self.store.set("told", "1")
        self.store.set(f"left/{self.ranks.rank}", "1")
        leave(loss.code)


def ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing in the main thread: the watch hears of the signal by itself."""


def home() -> str:
    """Return what two processes that can see each other's process ids have in common."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"


def how_it_died(pid: int) -> str:
    """Return `signal 9` or `exit code 3` of a process that nobody has waited for yet, else nothing."""
    try:
        words = (processes.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = int(words[-1])
    except (OSError, ValueError, IndexError):
        return ""
    if words[0] != "Z":
        return ""
    return f"signal {status & DIED_OF}" if status & DIED_OF else f"exit code {status >> 8}"


def line_of(thread: int | None) -> str:
    """Return the line that a thread is at: the innermost one of the user's own code, where it is inside such."""
    frame = sys._current_frames().get(thread or 0)
    stack = [entry for entry in traceback.extract_stack(frame) if not entry.filename.startswith("<")] if frame else []
    ours = [place for place, entry in enumerate(stack) if "torchparity" in Path(entry.filename).parts]
    inside = stack[ours[-1] + 1 :] if ours else stack
    own = [entry for entry in inside if is_users(entry.filename)]
    if own:
        return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"
    return "".join(
        f"{'/'.join(Path(entry.filename).parts[-3:])}:{entry.lineno} in {entry.name}" for entry in stack[-1:]
    )


def is_users(filename: str) -> bool:
    """Tell whether a file is neither torch's nor Python's."""
    return not (filename.startswith(STDLIB) or "torch" in Path(filename).parts)
