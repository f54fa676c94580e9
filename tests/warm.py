"""Commands of ours in real processes that need not import torch first: each is forked from one that has.

A process of its own still has its own folder, arguments, environment, output and end. What torch reads while it is
imported cannot be changed after it: a command with another such environment is begun cold.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The environment that counts while Python starts or torch is imported.
READ_AT_IMPORT = ("TORCH", "PYTORCH", "PYTHON", "OMP_", "MKL_", "CUDA_", "LD_", "CXX", "CC", "HOME", "TMPDIR", "XDG_")
SLOW = ("torch._dynamo", "torchparity.cli.main")
WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND
SERVERS: list[subprocess.Popen[str]] = []


def command_line(
    folder: Path, *words: object, env: Mapping[str, str | None] | None = None, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run `torchparity` in a folder; `env` is what its environment has besides, and None what it lacks."""
    given, added = [str(word) for word in words], env or {}
    whole = {name: value for name, value in {**os.environ, **added}.items() if value is not None}
    if any(read_at_import(name) for name in added):
        command = [sys.executable, "-m", "torchparity", *given]
        return subprocess.run(
            command, cwd=folder, env=whole, capture_output=True, text=True, timeout=timeout, check=False
        )
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        asked = {"folder": str(folder), "words": given, "out": str(out), "err": str(err), "seconds": timeout}
        code = answered({**asked, "environment": whole})
        if code is None:
            raise subprocess.TimeoutExpired(given, timeout)
        told = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
    return subprocess.CompletedProcess(given, code, *told)


def read_at_import(name: str) -> bool:
    """Tell whether a variable of the environment counts while torch is imported."""
    return name.startswith(READ_AT_IMPORT)


def answered(question: dict[str, Any]) -> int | None:
    """Ask the process that has imported torch; begin one where there is none, or where it saw another environment."""
    seen = {name: value for name, value in os.environ.items() if read_at_import(name)}
    if SERVERS and (SERVERS[0].poll() is not None or SERVERS[0].seen != seen):  # type: ignore[attr-defined]
        end()
    if not SERVERS:
        server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        server.seen = seen  # type: ignore[attr-defined]
        SERVERS.append(server)
        atexit.register(end)
    (server,) = SERVERS
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(question) + "\n")
    code: int | None = json.loads(server.stdout.readline())
    return code


def end() -> None:
    """End the process that commands are forked from."""
    while SERVERS:
        server = SERVERS.pop()
        server.kill()
        server.wait()


# --- the process that commands are forked from -----------------------------------------------------


def serve() -> None:
    """Import what is slow; then fork a process for each question."""
    for name in SLOW:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            return become(asked)
        print(json.dumps(ending(child, asked["seconds"])), flush=True)
    return None


def ending(child: int, seconds: float) -> int | None:
    """Return the exit code of a process, less than 0 for a signal; None for one that had to be killed."""
    signal.signal(signal.SIGALRM, lambda number, frame: os.killpg(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _, status = os.waitpid(child, 0)
    left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
    return os.waitstatus_to_exitcode(status) if left else None


def become(asked: dict[str, Any]) -> None:
    """Be the command."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, name, how in ((0, os.devnull, os.O_RDONLY), (1, asked["out"], WRITE), (2, asked["err"], WRITE)):
        descriptor = os.open(name, how, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.path[0] = asked["folder"]
    sys.argv = ["torchparity", *asked["words"]]
    from torchparity.cli.start import main

    main()


if __name__ == "__main__":
    serve()
