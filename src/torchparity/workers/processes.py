"""Processes as the system shows them: trees, memory, marks, and how to end them all.

Linux gives all of it through /proc and prctl. Elsewhere each question has the empty answer, and
what is left is the process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

LINUX = sys.platform == "linux"
PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# What a compiler writes in place: a file cut short here would be loaded by the next query that asks for it.
COMPILED = (".so", ".o", ".gch", ".pch")
ROUNDS = 20
# Not every kernel is built with it; going through all processes gives the same, slowly.
LISTS_CHILDREN = (PROC / f"self/task/{os.getpid()}/children").exists()

_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None


def die_with_parent() -> None:
    """Have this process killed when the one that forked it ends."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def prefer_as_victim() -> None:
    """Have the kernel end this process first when the machine runs out of memory."""
    with contextlib.suppress(OSError):
        (PROC / "self/oom_score_adj").write_text("1000")


def memory_victims() -> int:
    """Return how many processes the kernel has killed for want of memory since the machine started."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


# --- trees ---------------------------------------------------------------------------------------


def children(pid: int) -> set[int]:
    """Return the processes that a process is the parent of, zombies included."""
    if not LISTS_CHILDREN:
        return _families().get(pid, set())
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found |= {int(word) for word in (task / "children").read_text().split()}
    return found


def descendants(*pids: int) -> set[int]:
    """Return the children of processes, their children, and so on."""
    families = None if LISTS_CHILDREN else _families()
    found: set[int] = set()
    waiting = set(pids)
    while waiting:
        brood = (children(pid) if families is None else families.get(pid, set()) for pid in waiting)
        waiting = set().union(*brood) - found
        found |= waiting
    return found


def _families() -> dict[int, set[int]]:
    """Return the children of every process, from one look at them all."""
    found: dict[int, set[int]] = {}
    for folder in _process_folders():
        found.setdefault(_state(folder)[1], set()).add(int(folder.name))
    return found


def marked(name: str, value: str, *, others: set[int] | None = None) -> set[int]:
    """Return the processes, this one apart, that were started with `name=value` in their environment.

    `others` is filled with those that were not, and these are not looked at again: who chases processes
    that fork faster than all environments can be read passes the same set each time.
    """
    wanted = f"{name}={value}".encode()
    others = set() if others is None else others
    others.add(os.getpid())
    found = set()
    for folder in _process_folders():
        if int(folder.name) in others:
            continue
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes()
            if wanted in environment.split(b"\0"):
                found.add(int(folder.name))
            elif environment:  # a process that is just ending shows none
                others.add(int(folder.name))
    return found


def is_stopped(pid: int) -> bool:
    """Tell whether a process has been stopped by a signal and will not go on by itself."""
    return _state(PROC / str(pid))[0] in "Tt"


def _state(folder: Path) -> tuple[str, int]:
    """Return the state of a process and its parent. Its name comes before both and may hold anything."""
    try:
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "?", 0
    return state, int(parent)


def threads() -> int:
    """Return how many threads this process has, those that Python does not know of included."""
    return len(list((PROC / "self/task").iterdir())) if LINUX else threading.active_count()


def _process_folders() -> Iterable[Path]:
    return [folder for folder in PROC.iterdir() if folder.name.isdigit()] if LINUX else []


# --- memory --------------------------------------------------------------------------------------


def exceeds(pids: set[int], limit: int) -> bool:
    """Tell whether processes use more than `limit` bytes together, counting each shared page once.

    A fork shares most of its pages with the server. Resident sizes count those in every process, so they
    can only acquit; proportional sizes, which cost the kernel a walk over all pages, decide.
    """
    return sum(map(_resident, pids)) > limit and sum(map(_proportional, pids)) > limit


def _resident(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(pid)


# --- the end -------------------------------------------------------------------------------------


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_all(find: Callable[[], set[int]]) -> set[int]:
    """Kill every process that `find` names, and remove the compiled files that they were in the middle of.

    They are stopped first, until `find` names no new one: a process that is stopped cannot fork, and
    what it has open stays open to be looked at.
    """
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        fresh = find() - stopped
        if not fresh:
            break
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped |= fresh
    unfinished = [path for pid in stopped for path in _files_being_compiled(pid)]
    for pid in stopped:
        send(pid, signal.SIGKILL)
    for path in unfinished:
        with contextlib.suppress(OSError):
            path.unlink()
    return stopped


def kill_until_gone(find: Callable[[], set[int]], *, seconds: float) -> bool:
    """Kill every process that `find` names until it names none; return False where some outlive the time."""
    end = time.monotonic() + seconds
    while find():
        if time.monotonic() > end:
            return False
        kill_all(find)
        time.sleep(0.001)
    return True


def _files_being_compiled(pid: int) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for link in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                path = link.readlink()
                writable = link.lstat().st_mode & stat.S_IWUSR
                if writable and path.suffix in COMPILED and path.is_file():
                    found.append(path)
    return found


def remove_folder(path: Path) -> None:
    """Remove a folder and all that is in it, also where a candidate has taken the permissions away."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a process that leads a group of its own; kill all of it where it takes longer, or we are stopped."""
    try:
        return process.wait(timeout=seconds)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return -signal.SIGKILL
