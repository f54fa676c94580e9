"""A pool of warm, isolated worker processes: ask it to run a job, and it answers, whatever the job does.

    with Pool(workers=2, limits=Limits(seconds=60)) as pool:
        outcome = pool.run("package.module:function", {"any": "JSON"})

The function is called as `function(payload, announce)` in a process of its own, forked from a server
that has torch and the compilers imported. See docs/workers.md for what becomes of hostile ones.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import json
import logging
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torchparity.errors import UsageError
from torchparity.workers import processes
from torchparity.workers.connection import PROBES, Connection
from torchparity.workers.frames import BODY_LIMIT, Frame, pack
from torchparity.workers.outcome import Ending, ErrorFacts, Limits, Outcome

START_ATTEMPTS = 3
START_SECONDS = 300.0
# How long after a query's own limit its answer may come before the server is taken for lost.
GRACE_SECONDS = 15.0
TICK = 0.25
IDLE = 1.0

log = logging.getLogger(__name__)
_open_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@dataclass(eq=False)
class Request:
    """One query as the pool sees it."""

    number: int
    job: str
    payload: bytes
    limits: Limits
    cwd: str | None
    path: list[str]
    on_phase: Callable[[str], None] | None
    future: Future[Outcome]
    alone: bool = False
    # It asks others here and mostly waits for them, so it takes no worker's place.
    aside: bool = False
    sent: float = 0.0
    phase: str = ""

    def frame(self) -> bytes:
        """Return the query as the server wants it."""
        return pack(
            "query",
            self.payload,
            number=self.number,
            job=self.job,
            seconds=self.limits.seconds,
            memory=self.limits.memory,
            cwd=self.cwd,
            path=self.path,
        )

    @property
    def is_overdue(self) -> bool:
        """Whether the server should long have answered."""
        return time.monotonic() > self.sent + self.limits.seconds + GRACE_SECONDS


class Pool:
    """At most `workers` queries at once; the others wait. Safe to use from many threads.

    `preload` names modules that jobs will need, to be imported once; `compilers=False` leaves the
    compilers out, which makes the start 3 s instead of 10 s and the first compilation of every query
    5 s slower. `python` is the interpreter that runs the server, with libraries of its own; ours unless given.
    `spares` processes wait for a query with a device that is started; where there is a GPU two, else none.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        limits: Limits | None = None,
        preload: tuple[str, ...] = (),
        compilers: bool = True,
        python: str | None = None,
        spares: int | None = None,
    ) -> None:
        if workers < 1:
            raise UsageError(f"a pool of {workers} workers does nothing", hint="give it at least one")
        self.workers = workers
        self.limits = limits or Limits()
        self.root = Path(tempfile.mkdtemp(prefix="torchparity-"))
        self.mark = uuid.uuid4().hex
        self._preload = preload
        self._compilers = compilers
        self._spares = spares
        self._python = python or sys.executable
        self._foreign = self._python != sys.executable
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: collections.deque[Request] = collections.deque()
        self._running: dict[int, Request] = {}
        self._unwanted: collections.deque[Future[Outcome]] = collections.deque()
        self._closing = False
        self._refusal: ErrorFacts | None = None
        self._settled = threading.Event()
        self._alarm, self._bell = socket.socketpair()
        self._bell.setblocking(False)
        self.server: Connection | None = None
        # A daemon: Python waits for other threads before it calls exit handlers, and ours ends this one.
        self._keeper = threading.Thread(target=self._keep, name="torchparity-pool", daemon=True)
        self._keeper.start()
        _open_pools.add(self)

    # --- what callers use ----------------------------------------------------------------------------

    def submit(
        self,
        job: str,
        payload: Any,
        *,
        limits: Limits | None = None,
        on_phase: Callable[[str], None] | None = None,
        aside: bool = False,
    ) -> Future[Outcome]:
        """Queue a query and return its outcome to come. `on_phase` hears the newest phase, from another thread.

        What runs `aside` starts at once, and takes no worker's place: it mostly waits for other queries.
        """
        module, _, name = job.partition(":")
        if not module or not name:
            raise UsageError(f"`{job}` names no job", hint="write it as package.module:function")
        request = Request(
            number=next(self._numbers),
            job=job,
            payload=_as_json(payload),
            limits=limits or self.limits,
            cwd=_current_folder(),
            path=[] if self._foreign else [str(folder) for folder in sys.path],
            on_phase=on_phase,
            future=Future(),
            aside=aside,
        )
        with self._lock:
            if self._closing or os.getpid() != self._owner:
                raise UsageError("the pool is closed", hint="submit inside `with Pool(...) as pool:`")
            refusal = self._refusal
            if refusal is None:
                (self._waiting.appendleft if aside else self._waiting.append)(request)
        if refusal is not None:
            _answer(request, Outcome(ending=Ending.NOT_STARTED, error=refusal))
        self._wake()
        return request.future

    def run(self, job: str, payload: Any, *, limits: Limits | None = None) -> Outcome:
        """Run one query and wait for its outcome."""
        return self.submit(job, payload, limits=limits).result()

    def drop(self, asked: Future[Outcome]) -> None:
        """Let go of a query that nobody wants any more: one that waits is not begun, one that runs is killed."""
        if not asked.cancel() and not asked.done():
            self._unwanted.append(asked)
            self._wake()

    def wait_until_ready(self, seconds: float | None = None) -> bool:
        """Wait for the first server to be warm; return False where it is not, or cannot be."""
        return self._settled.wait(seconds) and self._refusal is None

    @property
    def probes(self) -> Path | None:
        """A folder with what the compiler has found out about this machine, and nothing that it has compiled."""
        folder = self.root / PROBES
        return folder if folder.is_dir() else None

    def close(self) -> None:
        """Kill running queries at once, answer waiting ones, and remove every process and file of the pool."""
        if os.getpid() != self._owner:  # a fork of the process that owns it
            return
        with self._lock:
            self._closing = True
        self._wake()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        _open_pools.discard(self)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- the keeper's thread -------------------------------------------------------------------------

    def _keep(self) -> None:
        """Keep a server running until the pool is closed, or until no server will start; then answer what is left."""
        reason = ErrorFacts(type="PoolClosed", message="the pool was closed")
        try:
            failures = 0
            while not self._closing and failures < START_ATTEMPTS:
                lost = self._serve_once()
                failures = 0 if lost.ready else failures + 1
                if failures == START_ATTEMPTS:
                    reason = _of_server("ServerNotStarted", lost.reason)
        except BaseException as error:
            reason = ErrorFacts(type=type(error).__name__, message=f"the pool itself failed: {error}")
            raise
        finally:
            self._retire(reason)

    def _serve_once(self) -> Loss:
        """Start one server, serve queries through it until it is lost or the pool closes, and bury it."""
        try:
            server = Connection(
                python=self._python,
                root=self.root,
                mark=self.mark,
                preload=self._preload,
                compilers=self._compilers,
                foreign=self._foreign,
                spares=self._spares,
            )
        except OSError as error:
            return Loss(ready=False, reason=f"{self._python} could not be started: {error}")
        self.server = server
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(server.socket, selectors.EVENT_READ)
                selector.register(self._alarm, selectors.EVENT_READ)
                self._attend(server, selector)
        finally:
            self.server = None
            reason = server.end()
            if not self._closing:
                processes.remove_folder(self.root / "queries")
                self._after_loss(reason, server)
        return Loss(ready=server.ready, reason=reason)

    def _attend(self, server: Connection, selector: selectors.BaseSelector) -> None:
        """Carry queries to the server and outcomes back, until it is lost or the pool closes."""
        start = time.monotonic()
        while not self._closing:
            if server.ready and not (self._send_unwanted(server) and self._send_waiting(server)):
                return
            for key, _ in selector.select(TICK if self._running or not server.ready else IDLE):
                if key.fileobj is self._alarm:
                    self._alarm.recv(4096)
                    continue
                frames = server.receive()
                if frames is None:
                    return
                for frame in frames:
                    self._hear(server, frame)
            late = not server.ready and time.monotonic() > start + START_SECONDS
            if late or server.is_lost() or any(request.is_overdue for request in self._running.values()):
                return

    def _send_waiting(self, server: Connection) -> bool:
        """Send as many queries as may run now; return False where the server takes no more."""
        while (request := self._next()) is not None:
            if not request.alone and not request.future.set_running_or_notify_cancel():
                continue
            request.sent = time.monotonic()
            self._running[request.number] = request
            if not server.send(request.frame()):
                return False
        return True

    def _send_unwanted(self, server: Connection) -> bool:
        """Have what was dropped killed; return False where the server takes no more."""
        while self._unwanted:
            asked = self._unwanted.popleft()
            for request in self._running.values():
                if request.future is asked and not server.send(pack("drop", number=request.number)):
                    return False
        return True

    def _next(self) -> Request | None:
        """Take the next query that may start. One that has to be alone waits for the others, and they for it."""
        with self._lock:
            running = [request for request in self._running.values() if not request.aside]
            if not self._waiting:
                return None
            if not self._waiting[0].aside and (any(it.alone for it in running) or len(running) >= self.workers):
                return None
            if self._waiting[0].alone and running:
                return None
            return self._waiting.popleft()

    def _hear(self, server: Connection, frame: Frame) -> None:
        """Take one frame from the server."""
        if frame.kind == "ready":
            server.ready = True
            self._settled.set()
            return
        request = self._running.get(frame.header["number"])
        if request is None:
            return
        if frame.kind == "phase":
            request.phase = frame.header["phase"]
            _call(request.on_phase, request.phase)
            return
        del self._running[request.number]
        if frame.kind == "not_started":
            _answer(request, Outcome(ending=Ending.NOT_STARTED, error=ErrorFacts(**frame.header["error"])))
        else:
            _answer(request, _outcome(frame))

    def _after_loss(self, reason: str, server: Connection) -> None:
        """Answer the queries that ran when the server was lost.

        One that ran by itself has done it, or has met the same fate: KILLED. Of several nobody knows which
        one did it, so each runs again, alone: the guilty one does it again, the others get their own outcome.
        """
        asides = [request for request in self._running.values() if request.aside]
        lost = sorted((it for it in self._running.values() if not it.aside), key=lambda request: request.number)
        self._running.clear()
        for request in asides:
            _answer(request, Outcome(ending=Ending.KILLED, error=_of_server("ServerLost", reason)))
        if len(lost) > 1:
            for request in lost:
                request.alone = True
            with self._lock:
                self._waiting.extendleft(reversed(lost))
            return
        code = server.process.returncode
        for request in lost:
            facts = _of_server("ServerLost", reason)
            number = -code if code is not None and code < 0 else None
            seconds = time.monotonic() - request.sent
            _answer(
                request, Outcome(ending=Ending.KILLED, error=facts, signal=number, phase=request.phase, seconds=seconds)
            )

    def _retire(self, reason: ErrorFacts) -> None:
        """Answer everything that is left, take no more, and remove the pool's folder."""
        with self._lock:
            self._refusal = reason
            waiting = list(self._waiting)
            self._waiting.clear()
        for request in self._running.values():
            _answer(request, Outcome(ending=Ending.KILLED, error=reason, phase=request.phase))
        for request in waiting:
            if request.alone or request.future.set_running_or_notify_cancel():
                _answer(request, Outcome(ending=Ending.NOT_STARTED, error=reason))
        self._running.clear()
        self._settled.set()
        self._alarm.close()
        self._bell.close()
        processes.remove_folder(self.root)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"!")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How a server ended: whether it had ever been ready, and its last words."""

    ready: bool
    reason: str


def _of_server(kind: str, reason: str) -> ErrorFacts:
    """Describe a server that is not there: how it ended and its last line in short, all that it said beside it."""
    how, _, log = reason.partition("\n")
    return ErrorFacts(type=kind, message=f"{how}: {log.splitlines()[-1].strip()}" if log else how, traceback=log)


def default_workers() -> int:
    """Return how many queries run at once: two where there are two cores, then one for every two."""
    cores = os.cpu_count() or 1
    return min(8, max(min(cores, 2), cores // 2))


def _as_json(payload: Any) -> bytes:
    try:
        data = json.dumps(payload).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the payload is not JSON: {error}", hint="pass text, numbers, lists and dictionaries"
        ) from error
    if len(data) > BODY_LIMIT:
        raise UsageError(f"the payload is {len(data)} bytes", hint="put it into a file and pass the path")
    return data


def _current_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _outcome(frame: Frame) -> Outcome:
    """Make an outcome of what the server tells. A body that is no JSON was not written by us: no answer."""
    header = frame.header
    facts = {name: header[name] for name in ("signal", "exit_code", "phase", "seconds", "output")}
    ending = Ending(header["ending"])
    try:
        body = json.loads(frame.body) if frame.body else None
        if ending is Ending.RETURNED:
            return Outcome(ending=ending, value=body, **facts)
        return Outcome(ending=ending, error=None if body is None else ErrorFacts(**body), **facts)
    except (ValueError, TypeError, RecursionError):
        return Outcome(ending=Ending.EXITED, **facts)


def _answer(request: Request, outcome: Outcome) -> None:
    if not request.future.done():
        request.future.set_result(outcome)


def _call(on_phase: Callable[[str], None] | None, phase: str) -> None:
    if on_phase is not None:
        try:
            on_phase(phase)
        except Exception:
            log.exception("on_phase raised")


@atexit.register
def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()
