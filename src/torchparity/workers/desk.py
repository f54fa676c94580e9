"""A desk: where a job in a worker asks its caller, many questions at once, and is told when to stop.

with Desk(answer) as desk:                       # in the caller; answer(question, reply)
    pool.submit(job, {"desk": desk.address})
Caller(payload["desk"]).ask({...}).result()      # in the job
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torchparity.workers.frames import Frame, FrameReader, pack

Reply = Callable[[Mapping[str, Any]], None]
CHUNK = 1 << 16


class Hung(Exception):
    """The other side of a desk is gone, or wants no more."""


class Line:
    """One end of a conversation: frames out, frames in, from a thread of its own."""

    def __init__(
        self, connected: socket.socket, hear: Callable[[Line, Frame], None], ended: Callable[[], None]
    ) -> None:
        self.socket, self.hear, self.ended = connected, hear, ended
        self.lock = threading.Lock()
        threading.Thread(target=self._listen, name="torchparity-desk", daemon=True).start()

    def send(self, kind: str, **fields: Any) -> None:
        """Send one frame; whoever is gone does not hear it."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(pack(kind, **fields))

    def _listen(self) -> None:
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := self.socket.recv(CHUNK):
                for frame in reader.feed(data):
                    self.hear(self, frame)
        self.ended()


class Desk:
    """The caller's side: `answer(question, reply)` is called for each question, and replies whenever it can."""

    def __init__(self, answer: Callable[[Mapping[str, Any], Reply], None]) -> None:
        self.answer = answer
        self.folder = Path(tempfile.mkdtemp(prefix="torchparity-"))
        self.address = str(self.folder / "desk")
        self.lines: list[Line] = []
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(self.address)
        self.server.listen()
        threading.Thread(target=self._accept, name="torchparity-desk", daemon=True).start()

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for line in self.lines:
            line.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> None:
        """Tell whoever asks that no more will be answered."""
        for line in self.lines:
            line.send("stop")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self.server.accept()
                self.lines.append(Line(connected, self._hear, connected.close))

    def _hear(self, line: Line, frame: Frame) -> None:
        number = frame.header["number"]
        self.answer(frame.header["question"], lambda told: line.send("answer", number=number, answer=dict(told)))


class Caller:
    """The job's side: asks, and waits where it must."""

    def __init__(self, address: str) -> None:
        self.numbers = itertools.count()
        self.waiting: dict[int, Future[Any]] = {}
        self.over = False
        self.guard = threading.Lock()
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(address)
        except OSError:
            connected.close()
            raise
        self.line = Line(connected, self._hear, self._hang_up)

    def ask(self, question: Mapping[str, Any]) -> Future[Any]:
        """Ask a question; its answer, or Hung, comes later."""
        number, answer = next(self.numbers), Future[Any]()
        with self.guard:
            self.waiting[number] = answer
        if self.over:
            self._hang_up()
        else:
            self.line.send("question", number=number, question=dict(question))
        return answer

    def _hear(self, line: Line, frame: Frame) -> None:
        if frame.kind == "stop":
            self._hang_up()
            return
        with self.guard:
            answer = self.waiting.pop(frame.header["number"], None)
        if answer is not None and not answer.done():
            answer.set_result(frame.header["answer"])

    def _hang_up(self) -> None:
        self.over = True
        with self.guard:
            left, self.waiting = list(self.waiting.values()), {}
        for answer in left:
            if not answer.done():
                answer.set_exception(Hung())
