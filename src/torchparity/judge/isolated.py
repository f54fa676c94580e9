"""A verdict from another process: whatever the candidate does there, the caller gets an answer."""

from __future__ import annotations

import faulthandler
import json
import re
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from torchparity import errors, torchapi
from torchparity.compare.digests import digest_kernels
from torchparity.compare.statistics import leaf_kernels
from torchparity.judge import reasons, script
from torchparity.judge.cases import judge_bundle
from torchparity.judge.standstill import place_in, watching, without_dumps
from torchparity.records import Failure, Kind, Progress, ProgressCallback, RunRecord, Status, Verdict
from torchparity.records.wire import plain_data, record_from
from torchparity.repro.bundle import read_bundle
from torchparity.repro.looking import located
from torchparity.request import PLAIN
from torchparity.run.bank import draw_ahead, noise_seed
from torchparity.run.environment import environment
from torchparity.run.noise import noise_kernels
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

# A candidate that dies of one of these did so itself; other signals come from outside.
OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
# Python's own words at the end of a process; how many letters are kept, of them and of what stands before them.
FATAL, WORDS, BEFORE = "Fatal Python error", 8000, 2000
BUNDLE_JOB = "torchparity.judge.isolated:bundle_job"
LIMIT_SECONDS = 1800.0

Announce = Callable[[str], None]


def prepare() -> None:
    """Have ready what every query needs: the text that bundles hold, the numbers of the noise."""
    script.prepare()
    draw_ahead(noise_seed(PLAIN.seed))


def prepare_device() -> None:
    """Have the kernels ready that every check on a GPU needs; workers call it while they wait for a query."""
    for kernels in (leaf_kernels, noise_kernels, digest_kernels):
        kernels("cuda")


def answer(judge: Callable[[ProgressCallback], Verdict], announce: Announce) -> dict[str, Any]:
    """Judge inside a worker; return the verdict, or the error that the caller is to raise."""
    try:
        return {"verdict": plain_data(judge(watching(lambda event: announce(json.dumps(asdict(event))))))}
    except errors.ParityError as error:
        return {"error": error.to_data()}
    finally:
        faulthandler.cancel_dump_traceback_later()


def bundle_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the bundle in a folder."""
    return answer(lambda tell: judge_bundle(Path(payload["folder"]), progress=tell), announce)


def run_in(
    pool: Pool, folder: Path, *, limits: Limits | None = None, progress: ProgressCallback | None = None
) -> Verdict:
    """Judge a bundle in a clean process of a pool."""
    folder = located(Path(folder))
    case = read_bundle(folder)  # What is damaged is refused before anything runs.
    payload = {"folder": str(folder.resolve())}
    name = case.recipe.backend_name()
    return judge_elsewhere(pool, BUNDLE_JOB, payload, subject=case.name, backend=name, limits=limits, progress=progress)


def judge_elsewhere(
    pool: Pool,
    job: str,
    payload: dict[str, Any],
    *,
    subject: str,
    backend: str,
    limits: Limits | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Run a job that answers with a verdict in a worker, and turn however it ends into a verdict."""

    def hear(phase: str) -> None:
        event = phase_of(phase)
        if progress is not None and event is not None:
            progress(event)

    outcome = pool.submit(job, payload, limits=limits or Limits(seconds=LIMIT_SECONDS), on_phase=hear).result()
    return verdict_of(outcome, subject=subject, backend=backend)


def phase_of(phase: str) -> Progress | None:
    """Return the run that a phase of a worker tells of; None where it tells of something else."""
    try:
        return record_from(Progress, json.loads(phase))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def verdict_of(outcome: Outcome, *, subject: str, backend: str) -> Verdict:
    """Turn however a worker ended into a verdict; raise the errors that are the caller's to see."""
    if outcome.ending is Ending.RETURNED and "error" in outcome.value:
        raise errors.error_from(outcome.value["error"])
    if outcome.ending is Ending.RETURNED:
        return told_outside(record_from(Verdict, outcome.value["verdict"]), outcome.output)
    event = phase_of(outcome.phase)
    name = event.name if event is not None else ""
    own_fault = outcome.ending is Ending.EXITED or outcome.signal in OWN_SIGNALS
    how = describe(outcome)
    place = place_in(outcome.output) if outcome.ending is Ending.TIMED_OUT else ""
    failure, status, why = (
        None,
        Status.UNKNOWN,
        reasons.no_answer(how, name, place),
    )
    if event is not None and event.candidate and own_fault:
        status, why = Status.DIFFERS, reasons.crashed(backend, how)
        failure = Failure(
            type=signal.Signals(outcome.signal).name if outcome.signal else "exit",
            message=how,
            stage=Kind.CRASHES.value,
            phase=name,
            traceback=last_words(outcome.output),
        )
    elif event is not None and event.after_candidate and own_fault:
        why = f"{why}; {reasons.died_later()}"
    elif outcome.error is not None:
        told = outcome.error
        failure = Failure(type=told.type, message=told.message, stage="worker", phase=name, traceback=told.traceback)
    return Verdict(
        status=status,
        reasons=(why,),
        runs=(RunRecord(name=name or "start", ending=outcome.ending.value, seconds=outcome.seconds, detail=how),),
        recipe={"backend": backend},
        environment=environment_there(event),
        subject=subject,
        failure=failure,
        seconds=outcome.seconds,
    )


def environment_there(event: Progress | None) -> dict[str, Any]:
    """Return where a process ran that cannot tell any more, as its last phase and this process know it."""
    name = event.device if event is not None else "cpu"
    try:
        return environment(torch.device(name))
    except (RuntimeError, AssertionError):  # This process has no such device, or cannot ask it.
        return {**environment(torch.device("cpu")), "device": name}


def last_words(output: str) -> str:
    """Return what a process printed before it died, the cause of it first.

    Python says which error is fatal, where every thread is, and at the end which modules it has loaded: over 6,000
    letters that tell nothing. What stands right before it is the message of whoever gave up.
    """
    text = re.sub(r"^Extension modules: .*$", "", without_dumps(output), flags=re.MULTILINE).rstrip()
    before, found, after = text.rpartition(FATAL)
    if not found:
        return text[-WORDS:]
    return f"{before[-BEFORE:]}{found}{after}"[:WORDS]


def told_outside(verdict: Verdict, output: str) -> Verdict:
    """Return a verdict on a lost device as it is told by another process, whose own device works.

    What the driver has printed tells more than the exception: which assertion, in which kernel's source.
    """
    failure = verdict.failure
    if failure is None or failure.stage != Kind.CRASHES.value:
        return verdict
    what, where = torchapi.failed_assertion(output)
    if what:
        trace = f"{failure.traceback}\n{output[-4000:]}"
        failure = replace(failure, message=f"`{what}` fails at {where}", traceback=trace)
    backend = str(verdict.recipe.get("backend", "the candidate"))
    rest = [reason for reason in verdict.reasons[1:] if reason != reasons.process_lost()]
    return replace(verdict, failure=failure, reasons=(reasons.device_fails(backend, failure), *rest))


def describe(outcome: Outcome) -> str:
    """Say how a worker ended, as what it did."""
    if outcome.ending is Ending.KILLED and outcome.signal is not None:
        return f"is killed by {signal.Signals(outcome.signal).name}"
    if outcome.ending is Ending.TIMED_OUT:
        return f"is stopped after {outcome.seconds:.0f} s, its time limit"
    if outcome.ending is Ending.EXITED:
        return f"leaves the process with exit code {outcome.exit_code}"
    if outcome.ending is Ending.OUT_OF_MEMORY:
        return "runs out of memory"
    told = f": {outcome.error.type}: {outcome.error.message}" if outcome.error else ""
    return f"could not be started{told}" if outcome.ending is Ending.NOT_STARTED else f"raises{told}"
