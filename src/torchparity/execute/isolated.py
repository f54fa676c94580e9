"""A verdict from another process: whatever the candidate does there, the caller gets an answer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchparity import errors
from torchparity.execute import reasons
from torchparity.execute.cases import judge_bundle
from torchparity.execute.environment import environment
from torchparity.execute.outcome import Ending, Limits, Outcome
from torchparity.execute.pool import Pool
from torchparity.execute.wire import pack, verdict_from
from torchparity.records import Failure, Kind, Progress, ProgressCallback, RunRecord, Status, Verdict
from torchparity.repro.bundle import located, read_bundle

# A candidate that dies of one of these did so itself; other signals come from outside.
OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
CANDIDATE = "candidate"
BUNDLE_JOB = "torchparity.execute.isolated:bundle_job"
SECONDS = 1800.0

Announce = Callable[[str], None]


def answer(judge: Callable[[ProgressCallback], Verdict], announce: Announce) -> dict[str, Any]:
    """Judge inside a worker; return the verdict, or the error that the caller is to raise."""

    def tell(event: Progress) -> None:
        announce(f"{CANDIDATE if event.candidate else 'model'} {event.run} {event.runs} {event.name}")

    try:
        return {"verdict": pack(judge(tell))}
    except errors.ParityError as error:
        return {"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}


def bundle_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Judge the bundle in a folder."""
    return answer(lambda tell: judge_bundle(Path(payload["folder"]), progress=tell), announce)


def run_bundle(
    folder: Path,
    *,
    pool: Pool | None = None,
    limits: Limits | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Judge a bundle in a clean process."""
    folder = located(Path(folder))
    case = read_bundle(folder)  # What is damaged is refused before anything runs.
    payload = {"folder": str(folder.resolve())}
    return judge_elsewhere(
        BUNDLE_JOB,
        payload,
        subject=case.name,
        backend=case.recipe.backend_name(),
        pool=pool,
        limits=limits,
        progress=progress,
    )


def judge_elsewhere(
    job: str,
    payload: dict[str, Any],
    *,
    subject: str,
    backend: str,
    pool: Pool | None = None,
    limits: Limits | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Run a job that answers with a verdict in a worker, and turn however it ends into a verdict."""

    def hear(phase: str) -> None:
        if progress is not None:
            role, run, runs, name = phase.split(" ", 3)
            progress(Progress(run=int(run), runs=int(runs), name=name, candidate=role == CANDIDATE))

    limits = limits or Limits(seconds=SECONDS)
    if pool is not None:
        outcome = pool.submit(job, payload, limits=limits, on_phase=hear).result()
    else:
        with Pool(workers=1) as own:
            outcome = own.submit(job, payload, limits=limits, on_phase=hear).result()
    return verdict_of(outcome, subject=subject, backend=backend)


def verdict_of(outcome: Outcome, *, subject: str, backend: str) -> Verdict:
    """Turn however a worker ended into a verdict; raise the errors that are the caller's to see."""
    if outcome.ending is Ending.RETURNED and "error" in outcome.value:
        told = outcome.value["error"]
        kind = getattr(errors, told["type"], errors.ParityError)
        raise kind(told["message"], hint=told["hint"])
    if outcome.ending is Ending.RETURNED:
        return verdict_from(outcome.value["verdict"])
    role, name = (outcome.phase.split(" ", 3)[0], outcome.phase.split(" ", 3)[-1]) if outcome.phase else ("", "")
    own_fault = outcome.ending is Ending.EXITED or outcome.signal in OWN_SIGNALS
    how = describe(outcome)
    failure, status, why = None, Status.UNKNOWN, reasons.no_answer(how, name)
    if role == CANDIDATE and own_fault:
        status, why = Status.DIFFERS, reasons.crashed(backend, how)
        failure = Failure(
            type=signal.Signals(outcome.signal).name if outcome.signal else "exit",
            message=how,
            stage=Kind.CRASHES.value,
            phase=name,
            traceback=outcome.output[-8000:],
        )
    elif outcome.error is not None:
        failure = Failure(
            type=outcome.error.type,
            message=outcome.error.message,
            stage="worker",
            phase=name,
            traceback=outcome.error.traceback,
        )
    return Verdict(
        status=status,
        reasons=(why,),
        runs=(RunRecord(name=name or "start", ending=outcome.ending.value, seconds=outcome.seconds, detail=how),),
        recipe={"backend": backend},
        environment=environment(torch.device("cpu")),
        subject=subject,
        failure=failure,
        seconds=outcome.seconds,
    )


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
