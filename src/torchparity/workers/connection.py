"""The pool's end of one server process: start it, talk to it, end it and what it has left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from torchparity.workers import processes
from torchparity.workers.frames import Frame, FrameReader

MARK = "TORCHPARITY_POOL"
MODULE = "torchparity.workers.server"
PACKAGE = Path(__file__).parents[1]
LOG = "server.log"
PROBES = "probes"
LOG_CHARACTERS = 4000
SEND_SECONDS = 60.0
LEAVE_SECONDS = 10.0
# Where the compiler stack remembers results of earlier processes. Generated code stays: its name is its content.
MEMORIES_OFF = {
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "0",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "0",
    # A pool of compile workers would be started in every query, and end with it.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
# What was made of graphs: off, but for a check that is asked once more (`verbs/remembering.py`).
GRAPHS_OFF = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
# Only until the server is warm: without these numpy would start threads, and torch the CUDA driver.
WHILE_WARMING = {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


class Connection:
    """One server process and the socket to it."""

    def __init__(
        self,
        *,
        python: str,
        root: Path,
        mark: str,
        preload: tuple[str, ...],
        compilers: bool,
        foreign: bool = False,
        spares: int | None = None,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.mark = mark
        self.reader = FrameReader()
        self.ready = False
        self.hung_up = False
        restore: dict[str, str | None] = {name: os.environ.get(name) for name in WHILE_WARMING}
        restore |= {"TORCHINDUCTOR_CACHE_DIR": str(root / "cache"), "TRITON_CACHE_DIR": str(root / "cache" / "triton")}
        asked = {"preload": preload, "compilers": compilers, "environment": restore, "spares": spares}
        settings = json.dumps(asked)
        with _socket_pair() as (ours, theirs), (root / LOG).open("wb") as log:
            self.process = subprocess.Popen(
                [python, "-P", "-m", MODULE, str(theirs.fileno()), str(root), settings],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(mark, lent_to(root) if foreign else str(PACKAGE.parent), compilers=compilers),
                start_new_session=True,
            )
            self.socket = ours
        self.socket.settimeout(SEND_SECONDS)

    def send(self, data: bytes) -> bool:
        """Send a frame; return False where the server does not take it."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> list[Frame] | None:
        """Return the frames that have come, or None at the end of the conversation."""
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            return None
        self.hung_up |= not data
        return self.reader.feed(data) if data else None

    def is_lost(self) -> bool:
        """Tell whether the server has ended, or has been stopped by a signal."""
        return self.process.poll() is not None or processes.is_stopped(self.process.pid)

    def end(self) -> str:
        """End the server and everything it has started; return how it ended, for a person."""
        self.socket.close()
        if (self.ready or self.hung_up) and not self.is_lost():  # It is about to end by itself, and says why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVE_SECONDS)
        others: set[int] = set()

        def left() -> set[int]:
            self.process.poll()  # the server itself is one of them, and would stay a zombie
            return processes.marked(MARK, self.mark, others=others)

        processes.kill_until_gone(left, seconds=LEAVE_SECONDS)
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE_SECONDS)
        return self._last_words()

    def _last_words(self) -> str:
        code = self.process.returncode
        if code is None or code >= 0:
            how = f"the server ended with exit code {code}"
        else:
            how = f"the server was killed by signal {-code} ({signal.Signals(-code).name})"
        try:
            log = (self.root / LOG).read_text(errors="replace")[-LOG_CHARACTERS:].strip()
        except OSError:
            log = ""
        return f"{how}\n{log}" if log else how


def lent_to(root: Path) -> str:
    """Return a folder that holds torchparity and nothing else: another interpreter has libraries of its own."""
    folder = root / "lent"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / PACKAGE.name).symlink_to(PACKAGE)
    return str(folder)


def _environment(mark: str, here: str, *, compilers: bool) -> dict[str, str]:
    search = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    found = {**os.environ, **GRAPHS_OFF, **MEMORIES_OFF, **WHILE_WARMING, MARK: mark, "PYTHONPATH": search}
    # Settings that stand here when a compiler is imported cannot be changed later; who warms up turns them off himself.
    return {name: value for name, value in found.items() if not (compilers and name in GRAPHS_OFF)}


@contextlib.contextmanager
def _socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give both ends of a socket, and close the server's end here; keep ours if all went well."""
    ours, low = socket.socketpair()
    # Where the caller has closed its stdin, the socket may sit on descriptor 0, which the server needs for its own.
    theirs = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    low.close()
    try:
        yield ours, theirs
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
