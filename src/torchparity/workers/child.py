"""The forked process of one query: set apart from everything, it calls the job once and answers."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchparity import torchapi
from torchparity.stack import roomy
from torchparity.workers import processes
from torchparity.workers.frames import BODY_LIMIT, Frame, FrameReader, pack
from torchparity.workers.outcome import Ending, ErrorFacts
from torchparity.workers.query import BEGUN, PHASE_LENGTH

Announce = Callable[[str], None]
Job = Callable[[Any, Announce], Any]

# High, so that a job which counts on getting descriptor 3 gets it, and does not close this one by mistake.
ANSWER_DESCRIPTOR = 200
MESSAGE_LENGTH = 64 * 1024
TRACEBACK_LENGTH = 256 * 1024


def isolate(*, server: int, folder: Path, output: int, answer: int, inherited: list[int]) -> int:
    """Cut a fresh fork off from the server and from other queries; return its descriptor for answers."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes.die_with_parent()
    if os.getppid() != server:
        os._exit(1)
    processes.adopt_orphans()
    processes.prefer_as_victim()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for descriptor in inherited:
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    high = _move_up(answer)
    for descriptor in {nothing, output} - {0, 1, 2}:
        os.close(descriptor)
    faulthandler.enable()
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)
    return high


def _move_up(descriptor: int) -> int:
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ANSWER_DESCRIPTOR)
    except OSError:  # the limit on open files is lower than that
        return descriptor
    os.close(descriptor)
    return high


def ordered(orders: int, answer: int) -> Frame:
    """Wait for the query, and say that it has begun; leave where none comes, because the server is gone."""
    with os.fdopen(orders, "rb") as pipe:
        named = pipe.readline().decode().strip()
    if not named:
        os._exit(0)
    path = Path(named)
    (frame,) = FrameReader().feed(path.read_bytes())
    path.unlink()
    _write(answer, pack(BEGUN))
    return frame


@roomy
def live(*, job: str, payload: bytes, path: list[str], cwd: str | None, answer: int) -> None:
    """Call the job and write what came of it. Returns in the process that was forked for it, and in no copy of it."""
    me = os.getpid()
    lock = threading.Lock()

    def announce(phase: str) -> None:
        if os.getpid() == me:
            with lock:
                _write(answer, pack("phase", phase=str(phase)[:PHASE_LENGTH]))

    try:
        sys.path[:] = path or sys.path
        if cwd is not None:
            os.chdir(cwd)
        ending, body = Ending.RETURNED, _as_json(_find(job)(json.loads(payload), announce))
    except SystemExit as leaving:
        _flush()
        os._exit(_exit_code(leaving))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        ending, body = _ending_of(error), json.dumps(asdict(facts(error))).encode()
    if os.getpid() != me:  # the job has forked and come back twice; only the first counts
        os._exit(0)
    _flush()
    with lock:
        _write(answer, pack(ending.value, body))


def _find(job: str) -> Job:
    module, _, name = job.partition(":")
    found: Job = getattr(importlib.import_module(module), name)
    return found


def _as_json(value: Any) -> bytes:
    body = json.dumps(value).encode()
    if len(body) > BODY_LIMIT:
        raise ValueError(f"the job's value is {len(body)} bytes of JSON; at most {BODY_LIMIT} fit in an answer")
    return body


def _ending_of(error: BaseException) -> Ending:
    with contextlib.suppress(BaseException):
        if torchapi.is_out_of_memory(error) or torchapi.is_out_of_memory(torchapi.inner_failure(error)):
            return Ending.OUT_OF_MEMORY
    return Ending.RAISED


def facts(error: BaseException) -> ErrorFacts:
    """Describe an exception, also one that resists: `str` of it may raise, or never have been meant for eyes."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    message = trace = ""
    with contextlib.suppress(BaseException):
        message = "<its text could not be made>"
        message = str(error)[:MESSAGE_LENGTH]
    with contextlib.suppress(BaseException):
        trace = "".join(traceback.format_exception(error))[-TRACEBACK_LENGTH:]
    return ErrorFacts(type=name, message=message, traceback=trace)


def _exit_code(leaving: SystemExit) -> int:
    """Return the status that Python itself would leave with."""
    if leaving.code is None:
        return 0
    return leaving.code & 0xFF if isinstance(leaving.code, int) else 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it. A descriptor that the job has closed makes an answer that never comes, and nothing else."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(descriptor, view) :]


def run(request: Mapping[str, Any], payload: bytes, answer: int) -> None:
    """Live, then leave without a trace: no exit handler, no thread that is waited for."""
    live(job=request["job"], payload=payload, path=request["path"], cwd=request["cwd"], answer=answer)
    os._exit(0)
