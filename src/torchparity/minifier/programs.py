"""Programs of Python: judged in workers, followed while they are made small, shown by a script."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compilers.written import request_from_json, request_to_json
from torchparity.errors import ParityError
from torchparity.judge.asking import oracle_for
from torchparity.judge.isolated import answer, judge_elsewhere, phase_of, verdict_of
from torchparity.minifier.delivery import NOT_COMPILED, ColdRun, run_cold, stopped
from torchparity.programs.script import FACTORY, HANGS, scripts
from torchparity.programs.small import Budget, Smaller, make_small
from torchparity.records import ProgressCallback, Signature, Status, Verdict, signatures_of
from torchparity.repro.source import SCRIPT
from torchparity.request import Request
from torchparity.run.target import Target
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool
from torchparity.workers.together import asking

PROGRAM_JOB = "torchparity.minifier.programs:program_job"
FIRST_JOB = "torchparity.minifier.programs:first_job"
# What one program may take.
SECONDS = 120.0
# More and more of a compiler, until a failure shows: the less, the cheaper each question.
CHEAPER = ("eager", "aot_eager")

Announce = Callable[[str], None]


# --- in a worker ---------------------------------------------------------------------------------


def program_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the program in a file."""
    quiet()
    place, request = Path(payload["file"]), request_from_json(payload["request"])
    return answer(lambda tell: judged_program(place, request, tell), announce)


def first_job(payload: dict[str, Any], announce: Announce) -> int | None:
    """Judge programs one after the other; return the place of the first that fails in one of the given ways."""
    quiet()
    request, wanted = request_from_json(payload["request"]), {Signature(**entry) for entry in payload["wanted"]}
    if payload["builder"]:
        with torchapi.built_by(asking(payload["builder"])):
            return first_of(payload, request, wanted, announce)
    return first_of(payload, request, wanted, announce)


def first_of(payload: dict[str, Any], request: Request, wanted: set[Signature], announce: Announce) -> int | None:
    """Judge each until one fails as wanted."""
    for place, file in enumerate(payload["files"]):
        tell = telling(announce, payload["names"][place])
        try:
            if wanted & set(signatures_of(judged_program(Path(file), request, tell))):
                return place
        except Exception:  # noqa: BLE001 - what an edit has made of a program may raise anything: it is not the one
            continue
    return None


def judged_program(place: Path, request: Request, progress: ProgressCallback | None = None) -> Verdict:
    """Judge the program in a file, in the process that this is called in, as if nothing had been compiled before."""
    torch.compiler.reset()
    torch.manual_seed(0)
    return oracle_for(Target(f"{place}:{FACTORY}").load(), request, progress=progress).judge()


def telling(announce: Announce, name: str) -> ProgressCallback:
    """Return what tells the caller of each run of one of several programs."""
    return lambda event: announce(json.dumps({**asdict(event), "name": name}))


def quiet() -> None:
    """Let a thousand programs not warn of what they are."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)


# --- asking --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A script that shows a bug, what it printed last, and whether default tolerances are exceeded."""

    text: str
    output: str
    beyond_default: bool


class Asking:
    """Asks workers about the texts of programs; whoever is at the desk `builder` builds their kernels together."""

    def __init__(self, pool: Pool, folder: Path, builder: str = "") -> None:
        self.pool, self.folder, self.builder = pool, folder, builder
        self.started: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count()

    def written(self, text: str) -> Path:
        """Return a file that holds a text."""
        place = self.folder / f"q{next(self._numbers)}.py"
        place.write_text(text, encoding="utf-8")
        return place

    def verdict(self, text: str, request: Request) -> Verdict | None:
        """Judge a text in a process of its own; None where it cannot be loaded or run at all."""
        payload = {"file": str(self.written(text)), "request": request_to_json(request)}
        try:
            return judge_elsewhere(
                self.pool,
                PROGRAM_JOB,
                payload,
                subject="program",
                backend=str(request.backend),
                limits=Limits(seconds=SECONDS),
            )
        except ParityError:
            return None

    def ways(self, text: str, request: Request) -> set[Signature]:
        """Return every way in which a text fails."""
        verdict = self.verdict(text, request)
        return set(signatures_of(verdict)) if verdict is not None else set()

    def first(self, texts: Sequence[str], request: Request, wanted: Collection[Signature]) -> int | None:
        """Return the place of the first text that fails as wanted; whoever dies on the way is told by how it died."""
        files = [str(self.written(text)) for text in texts]
        if self.builder and request.backend == "inductor":
            return self._first_abreast(files, request, wanted)
        place = 0
        while place < len(files):
            outcome = self._submitted(files[place:], request, wanted).result()
            if outcome.ending is Ending.RETURNED:
                found: int | None = outcome.value
                return None if found is None else place + found
            at = phase_of(outcome.phase)
            died = place + (int(at.name) if at is not None else 0)
            if died_as(outcome, request, wanted):
                return died
            place = died + 1
        return None

    def _first_abreast(self, files: Sequence[str], request: Request, wanted: Collection[Signature]) -> int | None:
        """Ask about all of them at once: their kernels are built together, which takes hardly longer than one."""
        running = [self._submitted([file], request, wanted) for file in files]
        try:
            for place, future in enumerate(running):
                outcome = future.result()
                if outcome.value == 0 if outcome.ending is Ending.RETURNED else died_as(outcome, request, wanted):
                    return place
            return None
        finally:
            for future in running:
                self.pool.drop(future)

    def _submitted(self, files: Sequence[str], request: Request, wanted: Collection[Signature]) -> Future[Outcome]:
        payload = {
            "files": files,
            "names": [str(number) for number in range(len(files))],
            "request": request_to_json(request),
            "wanted": [asdict(signature) for signature in wanted],
            "builder": self.builder,
        }
        return self.pool.submit(FIRST_JOB, payload, limits=Limits(seconds=SECONDS * len(files)))

    def make_small(
        self, text: str, request: Request, wanted: Collection[Signature], budget: Budget | None = None
    ) -> Smaller | None:
        """Make a program small that fails as wanted, with as little of the compiler as shows it; None if none does."""
        cheaper = [replace(request, backend=name, mode=None, config={}, options={}) for name in CHEAPER]
        for how in [*(cheaper if request.backend == "inductor" else []), request]:
            if self.first([text], how, wanted) is not None:
                smaller = make_small(text, partial(self.first, request=how, wanted=wanted), budget=budget)
                if how is request or self.first([smaller.text], request, wanted) is not None:
                    return smaller
        return None

    # --- the script ------------------------------------------------------------------------------

    def shown_by(self, text: str, verdict: Verdict, request: Request) -> Shown | None:
        """Return the first script that fails as the program does, and passes where nothing is compiled."""
        signature = next(iter(signatures_of(verdict)), None)
        leaves = [leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
        return self.script_showing(text, signature, leaves, request) if signature is not None else None

    def script_showing(self, text: str, signature: Signature, leaves: Sequence[str], request: Request) -> Shown | None:
        """Return the first script that fails in one way, at some leaves, and passes where nothing is compiled."""
        for script in scripts(text, signature.kind, leaves, request):
            with tempfile.TemporaryDirectory(prefix="torchparity-", ignore_cleanup_errors=True) as folder:
                failing = self._run(script.text, Path(folder))
                passes = shows(failing, signature) and self._run(script.text, Path(folder), NOT_COMPILED).exit_code == 0
            if passes:
                return Shown(text=script.text, output=failing.told(signature), beyond_default=script.beyond_default)
        return None

    def _run(self, script: str, folder: Path, more: Mapping[str, str] | None = None) -> ColdRun:
        place, cache = folder / SCRIPT, folder / "cache"
        place.write_text(script, encoding="utf-8")
        if self.pool.probes is not None:
            shutil.copytree(self.pool.probes, cache, dirs_exist_ok=True)
        return run_cold(place, str(cache), self.started, seconds=SECONDS, more=more, gives_way=False)

    def stop(self) -> None:
        """Kill the scripts that still run; nobody wants them."""
        stopped(self.started)


def died_as(outcome: Outcome, request: Request, wanted: Collection[Signature]) -> bool:
    """Tell whether a worker died as is wanted."""
    verdict = verdict_of(outcome, subject="program", backend=str(request.backend))
    return bool(set(wanted) & set(signatures_of(verdict)))


def shows(run: ColdRun, signature: Signature) -> bool:
    """Tell whether a script failed as it should; one that waits for a compiler says itself that it has waited."""
    if signature.kind == HANGS:
        return run.exit_code == 1 and "Timeout" in run.output
    return run.shows(signature, plain=True)
