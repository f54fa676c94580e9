"""The server: a warm process that forks one child for each query, watches it, and cleans up after it.

Started by the pool as `python -m torchparity.workers.server DESCRIPTOR FOLDER SETTINGS`. One thread, one
loop: it never waits for a child's pleasure, and it ends when the pool's end of the socket does.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchparity import torchapi
from torchparity.workers import child, processes, warmup
from torchparity.workers.connection import PROBES
from torchparity.workers.frames import Frame, FrameReader, pack
from torchparity.workers.outcome import Ending, ErrorFacts
from torchparity.workers.query import ANSWERS, CHUNK, Query
from torchparity.workers.spare import Spare, Spares

TICK = 0.05
IDLE = 1.0
# Phases are news, not answers: while the pool is this many bytes behind they wait.
BACKLOG = 1 << 20
GONE_SECONDS = 5.0


class Server:
    """The loop and everything it holds."""

    def __init__(self, control: socket.socket, root: Path) -> None:
        self.control = control
        self.control.setblocking(False)
        self.root = root
        self.parent = os.getppid()
        self.me = os.getpid()
        self.queries: dict[int, Query] = {}
        self.spares = Spares()
        self.ended: dict[int, int] = {}
        self.reader = FrameReader()
        self.outgoing = bytearray()
        self.wanted = True
        self.next_look = 0.0
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = os.pipe()
        for descriptor in (self.wake_read, self.wake_write):
            os.set_blocking(descriptor, False)
        self.selector.register(control, selectors.EVENT_READ, self.listen)
        self.selector.register(self.wake_read, selectors.EVENT_READ, self.empty_wake_pipe)

    def heed_signals(self) -> None:
        """Be woken by children that end, and be deaf to what is meant for the pool's own process."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def still_wanted(self) -> bool:
        """Tell whether the pool is still there."""
        self.notice_orphanhood()
        with contextlib.suppress(BlockingIOError):
            try:
                self.wanted &= self.control.recv(1, socket.MSG_PEEK) != b""
            except ConnectionError:
                self.wanted = False
        return self.wanted

    def notice_orphanhood(self) -> None:
        """See that the pool's process has died even if a fork of it still holds its socket."""
        self.wanted &= os.getppid() == self.parent

    def serve(self) -> None:
        """Run queries until the pool goes away, then leave nothing behind."""
        try:
            while self.wanted:
                for key, _ in self.selector.select(TICK if self.queries else IDLE):
                    key.data()
                self.reap()
                while self.ended:
                    pid, status = self.ended.popitem()
                    self.finish(self.queries.pop(pid), status)
                self.make_spare()
                self.enforce_limits()
                self.tell_phases()
                self.notice_orphanhood()
        finally:
            for query in self.queries.values():
                self.kill_group(query)
            self.sweep(lambda: processes.descendants(self.me))
        # Not after an exception: the pool reads the traceback in the log that lies there.
        processes.remove_folder(self.root)

    # --- the pool ------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Read from the pool, and write what was waiting for it."""
        self.flush()
        try:
            data = self.control.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self.wanted &= bool(data)
        for frame in self.reader.feed(data):
            (self.drop if frame.kind == "drop" else self.begin)(frame)

    def tell(self, data: bytes) -> None:
        """Queue a frame for the pool and write as much as it takes now."""
        self.outgoing += data
        self.flush()

    def flush(self) -> None:
        """Write what the pool takes, and ask to be called again if it does not take everything."""
        try:
            while self.outgoing:
                sent = self.control.send(self.outgoing[:CHUNK])
                del self.outgoing[:sent]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.wanted = False
            self.outgoing.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)
        self.selector.modify(self.control, events, self.listen)

    def tell_phases(self) -> None:
        """Tell the pool the newest phase of each query."""
        for query in self.queries.values():
            if query.phase_is_news and len(self.outgoing) < BACKLOG:
                query.phase_is_news = False
                self.tell(pack("phase", number=query.number, phase=query.phase))

    # --- the start of a query ------------------------------------------------------------------------

    def begin(self, frame: Frame) -> None:
        """Give a query to a process that waits for one, or to a new one."""
        spare = self.spares.take()
        if spare is not None and spare.order(frame):
            self.follow(spare, frame, asked=frame)
        else:
            self.begin_anew(frame)

    def drop(self, frame: Frame) -> None:
        """Kill a query that nobody wants any more; it may have ended by itself."""
        for query in self.queries.values():
            if query.number == frame.header["number"] and query.cut_short is None:
                query.asked = None
                self.cut_short(query, Ending.KILLED)

    def begin_anew(self, frame: Frame) -> None:
        """Fork the child of a query."""
        try:
            self.follow(self.fork(frame), frame)
        except OSError as error:
            self.tell_not_started(frame.header["number"], error)

    def follow(self, spare: Spare, frame: Frame, *, asked: Frame | None = None) -> None:
        """Listen to the child of a query from here on."""
        request = frame.header
        query = Query(
            number=request["number"],
            pid=spare.pid,
            folder=spare.folder,
            seconds=request["seconds"],
            memory=request["memory"],
            victims=processes.memory_victims(),
            asked=asked,
            waited=asked is not None,
        )
        query.listen(self.selector, answer=spare.answer, output=spare.output)
        self.queries[spare.pid] = query

    def make_spare(self) -> None:
        """Have one more process wait for a query, where some are to; a query does without where there is no room."""
        if self.spares.wants_another:
            with contextlib.suppress(OSError):
                self.spares.add(self.fork(None))

    def fork(self, frame: Frame | None) -> Spare:
        """Fork a child for a query; without one it prepares itself and waits for it."""
        with contextlib.ExitStack() as cleanup:
            folder = self.new_folder()
            cleanup.callback(processes.remove_folder, folder)
            answer, answer_end = self.new_pipe(cleanup)
            output, output_end = self.new_pipe(cleanup)
            orders_end, orders = self.new_pipe(cleanup)
            pid = os.fork()
            cleanup.pop_all()
        if pid == 0:
            held = [answer, output, orders]
            self.become_child(frame, folder, held=held, orders=orders_end, answer=answer_end, output=output_end)
        for descriptor in (answer_end, output_end, orders_end):
            os.close(descriptor)
        if frame is not None:
            os.close(orders)  # It has its query.
        return Spare(pid=pid, folder=folder, answer=answer, output=output, orders=orders)

    def new_folder(self) -> Path:
        """Make the temporary folder of a query, and those around it, which a candidate may have removed."""
        for name in ("queries", "cache"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="query-", dir=self.root / "queries"))

    def new_pipe(self, cleanup: contextlib.ExitStack) -> tuple[int, int]:
        """Make a pipe that is closed again if the start of the query fails."""
        reading, writing = os.pipe()
        cleanup.callback(os.close, reading)
        cleanup.callback(os.close, writing)
        return reading, writing

    def become_child(
        self, frame: Frame | None, folder: Path, *, held: list[int], orders: int, answer: int, output: int
    ) -> None:
        """Go on as the child. Does not return."""
        try:
            held = [*held, self.control.fileno(), self.wake_read, self.wake_write, *self.spares.descriptors()]
            held += [pipe.descriptor for query in self.queries.values() for pipe in query.pipes if pipe.descriptor]
            self.selector.close()
            answer = child.isolate(server=self.me, folder=folder, output=output, answer=answer, inherited=held)
            if frame is None:
                self.spares.prepare()
                frame = child.ordered(orders, answer)
            else:
                os.close(orders)
            child.run(frame.header, frame.body, answer)
        except BaseException:  # noqa: BLE001 - nothing may come out of here, or there would be two servers
            traceback.print_exc()
        finally:
            os._exit(70)

    def tell_not_started(self, number: int, error: OSError) -> None:
        """Say that there was no room for another process."""
        reason = ErrorFacts(type=type(error).__name__, message=f"no process could be started: {error}")
        self.tell(pack("not_started", number=number, error=asdict(reason)))

    # --- the end of a query --------------------------------------------------------------------------

    def empty_wake_pipe(self) -> None:
        """Take what signals have written: it was only meant to wake the loop."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_read, 4096):
                pass

    def enforce_limits(self) -> None:
        """Kill the queries that have used up their time or their memory."""
        if time.monotonic() < self.next_look:
            return
        for query in self.queries.values():
            if query.cut_short is None and (limit := query.broken_limit()) is not None:
                self.cut_short(query, limit)
        self.next_look = time.monotonic() + TICK

    def cut_short(self, query: Query, ending: Ending) -> None:
        """Kill a query; the outcome follows when its child is reaped."""
        query.cut_short = ending
        processes.kill_all(query.tree)
        self.kill_group(query)

    def kill_group(self, query: Query) -> None:
        """Kill the process group of a query: all that can be done on a system that shows no trees."""
        with contextlib.suppress(OSError):
            os.killpg(query.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect every child that has ended, ours or adopted."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self.queries:
                    self.ended[pid] = status
                    self.queries[pid].ended = time.monotonic()
                else:
                    self.spares.bury(pid)

    def finish(self, query: Query, status: int) -> None:
        """Clean up after a query and tell the pool how it ended."""
        self.sweep(self.strays)
        if not processes.LINUX:
            self.kill_group(query)
        query.drain()
        processes.remove_folder(query.folder)
        if query.asked is not None:  # It had not begun: what ended its process was none of its doing.
            self.spares.deaths += 1
            self.begin_anew(query.asked)
            return
        if query.waited:
            self.spares.deaths = 0
        facts = query.facts(status)
        body = query.result.body if query.result is not None and facts["ending"] in ANSWERS else b""
        self.tell(pack("done", body, **facts))

    def strays(self) -> set[int]:
        """Return the processes here that no running query accounts for, with all that descends from them."""
        found = processes.children(self.me) - set(self.queries) - self.spares.pids()
        return found | processes.descendants(*found)

    def sweep(self, find: Callable[[], set[int]]) -> None:
        """Kill processes and wait until they are gone, so that none writes to a folder that is being removed."""

        def left() -> set[int]:
            self.reap()  # a zombie would be found for ever
            return find()

        processes.kill_until_gone(left, seconds=GONE_SECONDS)


def main(descriptor: int, root: Path, settings: Mapping[str, Any]) -> None:
    """Warm up, say so, and serve."""
    processes.adopt_orphans()
    for stream in (sys.stdout, sys.stderr):  # as queries need them: what was printed before a crash is seen
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    prepare = functools.partial(warmup.prepare, settings["preload"], compilers=settings["compilers"])
    server = Server(socket.socket(fileno=descriptor), root)
    server.heed_signals()
    warmup.warm_up(settings["preload"], compilers=settings["compilers"], still_wanted=server.still_wanted)
    warmup.copy_probes(root / PROBES)
    if settings["compilers"]:
        warmup.share_headers(root)
    asked = settings["spares"]
    server.spares = Spares(most=warmup.SPARES * torchapi.has_gpu() if asked is None else asked, prepare=prepare)
    for name, value in settings["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    server.tell(pack("ready", threads=processes.threads()))
    server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
