"""Minify a case: every question is a bundle, judged by the oracle in a worker of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchparity.errors import ParityError, UsageError
from torchparity.execute.environment import environment
from torchparity.execute.isolated import run_bundle
from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool, default_workers
from torchparity.execute.processes import wait_or_kill
from torchparity.minifier.chase import Budget, BudgetSpent, Chase, Judge, Listener
from torchparity.minifier.delivery import VERIFICATIONS, Delivered, deliver, nearest
from torchparity.minifier.gate import Gate
from torchparity.minifier.log import NAME, Log, resumed
from torchparity.minifier.reduction import reduce_part
from torchparity.minifier.signature import Answer, Signature, answer_of
from torchparity.minifier.suspects import suspects
from torchparity.records import Verdict
from torchparity.repro.bundle import read_bundle, write_bundle
from torchparity.repro.case import Case
from torchparity.repro.script import write_script

SECONDS = 300.0
CHECK = Signature(kind="check")
INTERESTING, NOT_INTERESTING = 0, 1
# What is handed over where the user ends it first: the case is there, its script was not run.
NOT_RUN = Delivered(text="", plain=False, output="", reproduced=(0, 0))


@dataclass(frozen=True, kw_only=True)
class Minified(Case):
    """The smallest case found: verified, with the script to hand over and everything that finding it took.

    `reproduced` counts the cold processes in which the script failed as it should. `others` are cases that fail in
    another way, `passing` is the nearest one that does not fail. `complete` is False where the budget or the user
    ended the search.
    """

    reproduced: tuple[int, int] = (0, VERIFICATIONS)
    queries: int = 0
    seconds: float = 0.0
    complete: bool = True
    script: str = ""
    script_output: str = ""
    script_is_plain: bool = False
    title: str = ""
    passing: Case | None = None
    others: Mapping[str, Case] = field(default_factory=dict)
    log: tuple[Mapping[str, Any], ...] = ()
    started_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        """The case alone."""
        names = [entry.name for entry in dataclasses.fields(Case)]
        return Case(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a minification asks, and how; the log remembers it."""

    check: str | None = None
    limits: Limits = field(default_factory=lambda: Limits(seconds=SECONDS))
    # A pool to ask in, and what is already known of the case; where there are any.
    pool: Pool | None = None
    verdict: Verdict | None = None
    # How many workers looked for the culprit at the start: all, unless one had to ask how the case fails. Who goes on
    # with other workers asks the same questions.
    free: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return the job as plain data."""
        return {
            "check": self.check,
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
            "free": self.free,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Job:
        """Return the job that a log remembers."""
        limits = Limits(seconds=facts["seconds"], memory=facts["memory"])
        return cls(check=facts["check"], limits=limits, free=facts.get("free"))

    def width(self, workers: int | None) -> int:
        """Return how many questions are asked at once."""
        return workers or (self.pool.workers if self.pool is not None else default_workers())


def start_minify(
    case: Case, job: Job, *, out: Path | None, budget: Budget, workers: int | None, listen: Listener | None
) -> Minified:
    """Make a case small in a folder of its own."""
    with folder_for(out) as folder:
        if (folder / NAME).exists() and (folder / NAME).stat().st_size:
            raise UsageError(
                f"{folder} holds a minification already", hint=f"go on with `--resume {folder}`, or name another folder"
            )
        write_bundle(case, folder / "start")
        known = job.verdict is not None or bool((case.signature or {}).get("kind"))
        job = replace(job, free=max(1, job.width(workers) - (not known)))
        log = Log(folder / NAME)
        log.write("start", case=case.digest, **job.facts())
        try:
            return run_job(case, job, folder, log, budget=budget, workers=workers, listen=listen)
        except ParityError:
            if not (folder / "case").exists():  # Nothing was found, so nothing is left behind.
                for name in ("start", "queries"):
                    shutil.rmtree(folder / name, ignore_errors=True)
                (folder / NAME).unlink()
            raise


def continue_minify(folder: Path, *, budget: Budget, workers: int | None, listen: Listener | None) -> Minified:
    """Go on where a minification was stopped: what the log answers is not asked again."""
    log = resumed(folder)
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(folder / "queries", ignore_errors=True)
    case = read_bundle(folder / "start")
    job = Job.from_facts(log.header)
    return run_job(case, job, folder, log, budget=budget, workers=workers, listen=listen)


def run_job(
    case: Case,
    job: Job,
    folder: Path,
    log: Log,
    *,
    budget: Budget,
    workers: int | None,
    listen: Listener | None,
) -> Minified:
    """Chase the failure, and hand over what was found, however far that was."""
    began = time.monotonic()
    width = job.width(workers)
    with judging(job, width) as (judge, pool):
        chase = Chase(
            case,
            judge,
            folder=folder / "queries",
            log=log,
            width=width,
            budget=budget,
            listen=listen,
            looks_inside=job.check is None,
            free=job.free,
        )
        try:
            chase.start(answer_of(job.verdict) if job.verdict is not None else None)
            gate, complete, interrupted = searched(chase)
            hand_over = functools.partial(
                handed_over,
                chase,
                folder=folder,
                check=job.check is not None,
                probes=pool.probes if pool is not None else None,
            )
            result = hand_over(gate, interrupted=interrupted)
            if complete and chase.astray():
                gate, complete, interrupted = searched(chase)
                result = hand_over(gate, interrupted=interrupted)
        finally:
            chase.close()
    chase.end(wait=job.pool is None)
    log.write("ended", complete=complete, reproduced=list(result.reproduced))
    shutil.rmtree(folder / "queries", ignore_errors=True)
    return replace(result, complete=complete, seconds=time.monotonic() - began)


def searched(chase: Chase) -> tuple[Gate, bool, bool]:
    """Reduce as far as it goes; tell whether that was to the end, and whether the user stopped it."""
    gate = Gate(chase)
    try:
        reduce_part(gate, chase.extractor, functools.partial(suspects, chase))
    except (BudgetSpent, KeyboardInterrupt) as stopped:
        if gate.best is None:
            raise
        chase.close()
        return gate, False, isinstance(stopped, KeyboardInterrupt)
    return gate, True, False


def handed_over(
    chase: Chase, gate: Gate, *, folder: Path, check: bool, interrupted: bool, probes: Path | None
) -> Minified:
    """Write what was found: the case with its failure, the script, the nearest case that passes, the other failures."""
    signature = chase.signature
    assert signature is not None
    started = chase.case
    small = replace(
        chase.case_of(gate.current),
        signature={"kind": signature.kind, "error": signature.error, "summary": f"fails: {signature.text}"},
        environment={**started.environment, **environment(device_of(started))},
    )
    write_bundle(small, folder / "case")
    passing = nearest(gate.passing, gate.current)
    passing_case = chase.case_of(passing) if passing is not None else None
    if passing_case is not None:
        write_bundle(passing_case, folder / "passing")
    if interrupted:
        delivered = NOT_RUN
    elif check:
        again = sum(chase.shows(chase.judge(folder / "case")) for _ in range(VERIFICATIONS))
        delivered = Delivered(text=write_script(small), plain=False, output="", reproduced=(again, VERIFICATIONS))
    else:
        try:
            delivered = deliver(small, folder, signature, tolerance=chase.best_answer.tolerance, probes=probes)
        except KeyboardInterrupt:
            delivered = NOT_RUN
    return Minified(
        **{entry.name: getattr(small, entry.name) for entry in dataclasses.fields(Case)},
        reproduced=delivered.reproduced,
        queries=chase.queries,
        script=delivered.text,
        script_output=delivered.output,
        script_is_plain=delivered.plain,
        title=delivered.text.split("\n", 1)[0].strip('"') if delivered.plain else "",
        log=tuple(chase.log.entries()),
        passing=passing_case,
        others={path.name: read_bundle(path) for path in sorted(chase.others.glob("*"))},
        started_from={"name": started.name, "operations": started.compute_nodes, "inputs": len(started.inputs)},
    )


def device_of(case: Case) -> torch.device:
    """Return the device that a case runs on: the first that is not the CPU."""
    others = [storage.device for storage in case.storages if storage.device != "cpu"]
    return torch.device(others[0] if others else "cpu")


@contextlib.contextmanager
def folder_for(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder to write to; one that goes away again where none was named."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            yield Path(name)
        return
    folder = Path(out)
    # A kill right at the beginning leaves the first case, whole or in part.
    strange = folder.is_file() or any(
        entry.name not in ("start", NAME) and not entry.name.startswith(".start.") for entry in folder.glob("*")
    )
    if strange and not (folder / NAME).exists():
        raise UsageError(f"{folder} is not empty", hint="name another folder; this one would be written over")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


@contextlib.contextmanager
def judging(job: Job, width: int) -> Iterator[tuple[Judge, Pool | None]]:
    """Yield what answers about a bundle: the oracle in workers, and these; or the user's own command."""
    command = job.check
    if command is not None:
        yield lambda path: run_check(command, path, job.limits), None
        return
    with contextlib.nullcontext(job.pool) if job.pool is not None else Pool(workers=width) as pool:
        yield lambda path: answer_of(run_bundle(path, pool=pool, limits=job.limits)), pool


def run_check(command: str, path: Path, limits: Limits) -> Answer:
    """Let the user's command decide about a bundle."""
    started = time.monotonic()
    process = subprocess.Popen(
        command.replace("{}", shlex.quote(str(path))),
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    code = wait_or_kill(process, limits.seconds)
    return Answer(
        signatures=(CHECK,) if code == INTERESTING else (),
        same=code == NOT_INTERESTING,
        seconds=time.monotonic() - started,
    )
