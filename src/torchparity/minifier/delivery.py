"""What is handed over at the end: the script, run in cold processes, and the nearest graph that passes."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchparity import torchapi
from torchparity.graphs.part import Part
from torchparity.judge.script import write_script
from torchparity.records import BY_CHANCE, Kind, Signature
from torchparity.repro.case import Case
from torchparity.repro.source import SCRIPT
from torchparity.workers.processes import wait_or_kill
from torchparity.workers.warmup import VECTORS_WORK

VERIFICATIONS = 3
RUN_SECONDS = 300.0
# How much of what a script prints is kept, and shown, and how much of that stands before the error it is about: a
# C++ compiler goes on for a hundred thousand letters after it.
KEPT = 4 << 20
OUTPUT, BEFORE = 6000, 2000
# torch's own switch: where it is set, torch.compile compiles nothing.
NOT_COMPILED = {"TORCH_COMPILE_DISABLE": "1"}
# Words in a script whose results eager itself might not repeat: random numbers, atomics of a GPU.
DOUBTFUL = ("manual_seed", "cuda")
# How much nicer than this process a cold run is.
GIVES_WAY = 10
# A crash may also be reported by a shell's way of saying it.
SHELL_SIGNAL = 128


@dataclass(frozen=True, kw_only=True)
class ColdRun:
    """How a script ended in a process of its own."""

    exit_code: int
    output: str

    def told(self, signature: Signature) -> str:
        """Return what it printed around its error."""
        place = self.output.rfind(f"{signature.error}:") if signature.error else -1
        if len(self.output) <= OUTPUT or place < 0:
            return self.output[-OUTPUT:]
        start = max(0, min(place - BEFORE, len(self.output) - OUTPUT))
        return self.output[start : start + OUTPUT]

    def shows(self, signature: Signature, *, plain: bool) -> bool:
        """Tell whether a script failed as it should: a bundle's own says so, a plain one by how it ends."""
        if signature.kind == Kind.CRASHES.value:
            names = (signature.error,) if signature.error else BY_CHANCE
            told = self.exit_code == 1 and any(name in self.output for name in names)
            return told or self.exit_code < 0 or self.exit_code > SHELL_SIGNAL
        if not plain:
            return self.exit_code == 1
        if signature.kind == Kind.RAISES.value:
            return self.exit_code == 1 and signature.error in self.output
        return self.exit_code == 1 and "AssertionError" in self.output


def run_cold(
    script: Path,
    cache: str,
    started: list[subprocess.Popen[bytes]],
    *,
    seconds: float = RUN_SECONDS,
    more: Mapping[str, str] | None = None,
    gives_way: bool = True,
) -> ColdRun:
    """Run a script in a fresh process that compiles for itself.

    What a compiler finds out about the machine (vector instructions) it may find in a folder that is not the user's:
    that is half of a first compilation. Graphs that were compiled before it may not. `started` is told of the process,
    which gives way to workers unless nobody waits for those; `more` is what else its environment says.
    """
    with tempfile.TemporaryFile() as output:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, **torchapi.NO_GRAPH_CACHES, **(more or {})}
        if (Path(cache) / VECTORS_WORK).is_file():
            environment[torchapi.VECTORS_WORK] = "1"
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,  # In this session: Linux shares its time out by sessions, and the workers have theirs.
        )
        started.append(process)
        if gives_way:  # The whole case may still be asked about: that takes longer.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + GIVES_WAY)
        code = wait_or_kill(process, seconds)
        output.seek(0)
        return ColdRun(exit_code=code, output=output.read().decode("utf-8", "replace")[-KEPT:])


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """The script that is handed over, what it printed, and how often it failed as it should."""

    text: str
    plain: bool
    output: str
    reproduced: tuple[int, int]


def deliver(
    case: Case,
    folder: Path,
    signature: Signature,
    scripts: Iterable[str],
    *,
    probes: Path | None = None,
    before: Callable[[str], Sequence[Future[ColdRun]]] = lambda text: (),
) -> Delivered:
    """Write `repro.py`: plain where a plain script shows the failure, else that of the bundle; run it three times.

    `before` returns the runs of a text that was run already.
    """
    for text in scripts:
        (folder / SCRIPT).write_text(text, encoding="utf-8")
        delivered = verified(folder / SCRIPT, text, signature, plain=True, probes=probes, before=before(text))
        if delivered.reproduced[0] == VERIFICATIONS and agrees_with_itself(folder / SCRIPT, text):
            return delivered
    (folder / SCRIPT).unlink(missing_ok=True)
    return verified(folder / "case" / SCRIPT, write_script(case), signature, plain=False, probes=probes)


def agrees_with_itself(script: Path, text: str) -> bool:
    """Tell whether a script passes where nothing is compiled; asked where eager might not repeat itself."""
    if not any(word in text for word in DOUBTFUL) or "torch.compile(" not in text:
        return True
    with tempfile.TemporaryDirectory(prefix="torchparity-") as cache:
        return run_cold(script, cache, [], more=NOT_COMPILED).exit_code == 0


def verified(
    script: Path,
    text: str,
    signature: Signature,
    *,
    plain: bool,
    probes: Path | None,
    before: Sequence[Future[ColdRun]] = (),
) -> Delivered:
    """Run a script three times, together: on two cores the third would else run beside an idle one.

    `before` are runs of this very text that were begun before.
    """
    started: list[subprocess.Popen[bytes]] = []
    again = VERIFICATIONS - len(before)
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name, ThreadPoolExecutor(VERIFICATIONS) as pool:
        caches = [Path(name) / str(number) for number in range(again)]
        for cache in caches:
            if probes is not None:
                shutil.copytree(probes, cache)
        try:
            runs = list(pool.map(lambda cache: run_cold(script, str(cache), started), caches))
            runs += [run.result() for run in before]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            stopped(started)
            raise
    shown = sum(run.shows(signature, plain=plain) for run in runs)
    return Delivered(text=text, plain=plain, output=runs[0].told(signature), reproduced=(shown, VERIFICATIONS))


def stopped(started: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill what still runs."""
    for process in started:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def nearest(passing: Iterable[Part], failing: Part) -> Part | None:
    """Return the part that passes and is most like the one that fails."""
    wanted = failing.key.splitlines()
    entries = list(passing)
    if not entries:
        return None
    return max(entries, key=lambda part: difflib.SequenceMatcher(None, part.key.splitlines(), wanted).ratio())
