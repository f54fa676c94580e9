"""One script in a process of its own: how it ended, and what that says.

0           it works
1           it fails; unless this release lacks what the script needs (a module, a name of torch, a compiler)
a crash     it fails: SIGSEGV and its like may be the bug itself
all else    no answer: 2, 125, too slow, killed by somebody
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchparity.records import ReleaseState
from torchparity.workers.processes import kill_until_gone, marked, wait_or_kill

OUTPUT = 6000
LONG = 200
MARK = "TORCHPARITY_SINCE"
LEAVING_SECONDS = 10.0
# A caller's settings that would give an interpreter another torch than its own.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"}
# How a shell says that a process has died of a signal.
SHELL_SIGNAL = 128
TRACEBACK = "Traceback (most recent call last):"
# What a release, or this machine, does not have: that says nothing about the failure.
LACKS = re.compile(
    r"""(\w+\.)*(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|MemoryError|OutOfMemoryError)\b
    | AttributeError:\ (module\ 'torch|'_OpNamespace')
    | .*(InvalidCxxCompiler|No\ working\ C\+\+\ compiler|No\ space\ left\ on\ device)""",
    re.VERBOSE,
)
VERSION = re.compile(r"^torch (\S+)$", re.MULTILINE)
TELL_VERSION = "import torch; print('torch', torch.__version__)"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended: its exit code, or less than nothing for a signal; `late` where we ended it."""

    exit_code: int
    output: str
    seconds: float
    late: bool = False


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What an ending says: the answer, the name of the failure, and the reason in words."""

    state: ReleaseState
    error: str = ""
    why: str = ""


def plain_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what would lead an interpreter to another torch than its own."""
    return {name: value for name, value in os.environ.items() if name not in FOREIGN} | more


def run_process(command: Sequence[str], *, seconds: float, environment: Mapping[str, str]) -> Ended:
    """Run a command to its end, or end it and all that it has started; OSError where it cannot be started."""
    mark = secrets.token_hex(8)
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, MARK: mark},
                process_group=0,
            )
            code = wait_or_kill(process, seconds)
        finally:  # Compilers start workers in groups of their own; an interrupt may come before we know the process.
            kill_until_gone(lambda: marked(MARK, mark), seconds=LEAVING_SECONDS)
        spent = time.monotonic() - began
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - 4 * OUTPUT))
        text = output.read().decode("utf-8", "replace")[-OUTPUT:]
    return Ended(exit_code=code, output=text, seconds=spent, late=code == -signal.SIGKILL and spent >= seconds)


def run_script(script: Path, python: str, *, seconds: float) -> Ended:
    """Run a script with an interpreter, with a cache of compiled code that is its own."""
    with tempfile.TemporaryDirectory(prefix="torchparity-", ignore_cleanup_errors=True) as cache:
        caches = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        command = [python, str(script.absolute())]
        return run_process(command, seconds=seconds, environment=plain_environment(**caches))


def torch_of(python: str, *, seconds: float) -> tuple[str, Ended]:
    """Return the version of torch that an interpreter imports, empty where it imports none, and how it ended."""
    ended = run_process([python, "-c", TELL_VERSION], seconds=seconds, environment=plain_environment())
    found = VERSION.findall(ended.output) if ended.exit_code == 0 else []
    return (found[-1] if found else ""), ended


def meaning_of(ended: Ended, *, seconds: float) -> Meaning:
    """Say what an ending means."""
    if ended.late:
        return Meaning(state=ReleaseState.UNKNOWN, why=f"takes longer than {seconds:g} s")
    died = signal_of(ended.exit_code)
    if died in CRASHES:
        return Meaning(state=ReleaseState.FAILS, error=died, why=f"dies of {died}")
    if died:
        want = ", perhaps for want of memory" if died == "SIGKILL" else ""
        return Meaning(state=ReleaseState.UNKNOWN, why=f"was killed by {died}{want}")
    if ended.exit_code == 0:
        return Meaning(state=ReleaseState.WORKS)
    last = error_line(ended.output)
    told = last or last_line(ended.output)
    if ended.exit_code != 1:
        rest = f": {told}" if told else ""
        return Meaning(state=ReleaseState.UNKNOWN, why=f"exits with {ended.exit_code}, which says neither{rest}")
    if LACKS.match(last):
        return Meaning(state=ReleaseState.UNKNOWN, why=f"lacks what the script needs: {told}")
    return Meaning(state=ReleaseState.FAILS, error=error_name(last), why=told or "exits with 1")


def signal_of(code: int) -> str:
    """Name the signal that a process has died of, also where a shell says it; nothing where it was none."""
    number = -code if code < 0 else code - SHELL_SIGNAL
    try:
        return signal.Signals(number).name if number > 0 else ""
    except ValueError:
        return f"signal {number}" if code < 0 else ""


def error_line(output: str) -> str:
    """Return the line of the last traceback that names the exception; nothing where there is none."""
    lines = output.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK)]
    if not starts:  # A script that Python cannot read has no traceback.
        return next((cut(line) for line in reversed(lines) if re.match(r"(Syntax|Indentation|Tab)Error: ", line)), "")
    after = (line for line in lines[starts[-1] + 1 :] if line[:1].strip())
    return cut(next(after, ""))


def error_name(line: str) -> str:
    """Return the name of an exception without its module: InductorError of package.module.InductorError: ..."""
    return line.partition(":")[0].strip().rpartition(".")[2]


def last_line(output: str) -> str:
    """Return the last line that says something."""
    return cut(next((line for line in reversed(output.splitlines()) if line.strip()), ""))


def cut(line: str) -> str:
    """Return a line, cut where it is long."""
    line = line.strip()
    return line if len(line) <= LONG else f"{line[:LONG]}…"
