"""One run under NVIDIA's compute-sanitizer, where that is installed: it sees every access of every kernel.

    python -m torchparity.verbs.sanitize QUESTION.json

is what runs under it: the model or the case compiled as asked, and run once. Slow, and thorough: reads count too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchparity.compilers.written import request_from_json, request_to_json
from torchparity.errors import ResourceError, UsageError
from torchparity.judge.asking import oracle_for
from torchparity.judge.cases import oracle_of
from torchparity.judge.memory import outside_report
from torchparity.judge.oracle import Oracle
from torchparity.records import LeafReport, Status, Verdict
from torchparity.repro.bundle import read_bundle
from torchparity.request import Request
from torchparity.run.target import Target
from torchparity.workers.processes import wait_or_kill

SANITIZER = "compute-sanitizer"
QUESTION = "question.json"
LOG = "sanitizer.log"
OUTPUT = "output.txt"
# Every tensor lies in memory of its own, kernels are compiled in the process that is watched.
WATCHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
HEAD = re.compile(r"^========= (?P<what>(?:Invalid|Misaligned|Out-of-range|Warp|Stack|Malloc|Device-side)\b.*)$")
PLACE = re.compile(r"^=========\s+at (?P<kernel>.+?)(?:\+0x[0-9a-f]+)?(?: in (?P<place>\S+:\d+))?$")
DISTANCE = re.compile(r"^=========\s+and is (?P<distance>.+?) the nearest allocation at \S+ of size (?P<size>.+)$")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """An access that is none: of which kernel, at which line of it, how far outside, and how often."""

    what: str
    kernel: str = ""
    place: str = ""
    outside: str = ""
    times: int = 1


def sanitized(what: Target | Path, request: Request, verdict: Verdict, *, seconds: float) -> Verdict:
    """Run a target or a bundle under the sanitizer; return a verdict with what it saw."""
    found = violations(what, request, seconds=seconds)
    if not found:
        return replace(verdict, reasons=(*verdict.reasons, f"{SANITIZER} sees nothing wrong in one run"))
    first = found[0]
    where = f" of {first.kernel}{f' at {first.place}' if first.place else ''}" if first.kernel else ""
    rest = f", and {len(found) - 1} more" if len(found) > 1 else ""
    told = f"{SANITIZER} sees: {first.what}{where}{rest}"
    leaves = (*map(report_of, found), *verdict.leaves)
    return replace(verdict, status=Status.DIFFERS, reasons=(told, *verdict.reasons), leaves=leaves)


def report_of(violation: Violation) -> LeafReport:
    """Return a violation as a leaf that differs."""
    outside = f", {violation.outside}" if violation.outside else ""
    detail = f"{violation.what}, {violation.times} times{outside}"
    return outside_report(" at ".join(filter(None, (violation.kernel, violation.place))), detail)


def violations(what: Target | Path, request: Request, *, seconds: float) -> list[Violation]:
    """Return what the sanitizer sees in one run of a target or a bundle."""
    tool = require_sanitizer()
    question: dict[str, Any] = {"bundle": str(what.resolve())} if isinstance(what, Path) else {"target": asdict(what)}
    question["request"] = request_to_json(request)
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
        folder = Path(name)
        (folder / QUESTION).write_text(json.dumps(question), encoding="utf-8")
        command = [tool, "--tool", "memcheck", "--log-file", str(folder / LOG)]
        command += [sys.executable, "-m", "torchparity.verbs.sanitize", str(folder / QUESTION)]
        with (folder / OUTPUT).open("wb") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **WATCHED}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            code = wait_or_kill(process, seconds)
        if code == -signal.SIGKILL:
            raise ResourceError(
                f"under {SANITIZER} one run takes longer than {seconds:g} s", hint="give it more with --timeout"
            )
        log = folder / LOG
        found = read(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
        if not found and code:
            said = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = (said or ["it says nothing"])[-1]
            raise ResourceError(f"under {SANITIZER} the model does not run: {last}", hint="does it run without?")
        return found


def require_sanitizer() -> str:
    """Return where the sanitizer is, or say how to get it."""
    usual = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / SANITIZER
    tool = shutil.which(SANITIZER) or (str(usual) if usual.is_file() else None)
    if tool is None:
        raise UsageError(
            f"{SANITIZER} is not installed here", hint="it comes with NVIDIA's CUDA toolkit; put it on PATH"
        )
    return tool


def read(log: str) -> list[Violation]:
    """Read a report: the same access of many threads is one violation."""
    found: dict[tuple[str, str, str], Violation] = {}
    lines = log.splitlines()
    for number, line in enumerate(lines):
        head = HEAD.match(line)
        if head is None:
            continue
        details = lines[number + 1 : number + 6]
        at = next(filter(None, map(PLACE.match, details)), None)
        away = next(filter(None, map(DISTANCE.match, details)), None)
        entry = Violation(
            what=head["what"],
            kernel=at["kernel"] if at else "",
            place=(at["place"] or "") if at else "",
            outside=f"{away['distance']} an allocation of {away['size']}" if away else "",
        )
        key = (entry.what, entry.kernel, entry.place)
        found[key] = replace(found[key], times=found[key].times + 1) if key in found else entry
    return list(found.values())


def asked_oracle(question: Mapping[str, Any]) -> Oracle:
    """Return what would judge the model or the case of a question."""
    if "bundle" in question:
        folder = Path(question["bundle"])
        return oracle_of(read_bundle(folder), path=folder)
    return oracle_for(Target(**question["target"]).load(), request_from_json(question["request"]))


def main(path: str) -> int:
    """Compile and run once, and judge nothing; tell whether that came to its end."""
    oracle = asked_oracle(json.loads(Path(path).read_text(encoding="utf-8")))
    built = oracle.candidate.build(oracle.subject.model)
    with oracle.candidate.active():
        ending = oracle.ground.runner.run(built, lambda leaf: None)
    if ending.failure is not None:
        print(f"{ending.failure.type}: {ending.failure.message}", file=sys.stderr)
    os._exit(int(ending.failure is not None))  # A device that is lost cannot be put back.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
