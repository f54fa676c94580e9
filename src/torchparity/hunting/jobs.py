"""What workers do in a hunt: draw programs and judge them, or judge one that is given."""

from __future__ import annotations

import json
import logging
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchparity.compilers.candidates import Compiled
from torchparity.compilers.recipe import recipe_of
from torchparity.errors import ParityError
from torchparity.hunting.grammar import Writer
from torchparity.judge.isolated import OWN_SIGNALS
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import settings_of
from torchparity.records import Kind, ProgressCallback, Verdict, signatures_of
from torchparity.records.wire import plain_data
from torchparity.request import Request, request_for
from torchparity.run.plan import plan_of, settled
from torchparity.run.target import Target
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

Announce = Callable[[str], None]
Answer = dict[str, Any]
Pin = tuple[str, ...]
FACTORY = "make"
BATCH_JOB = "torchparity.hunting.jobs:batch_job"
PROGRAM_JOB = "torchparity.hunting.jobs:program_job"
FIRST_JOB = "torchparity.hunting.jobs:first_job"
# What one program may take.
SECONDS = 120.0
PRELOAD = ("torchparity.hunting.jobs",)
# A compiler that does not come to an end: a kind of its own in a hunt.
HANGS = "hangs"
# What a hunt says of a program beside same, differs and unknown: the checker itself failed.
ERROR = "error"


def batch_job(payload: dict[str, Any], announce: Announce) -> list[Answer]:
    """Draw programs from seeds and judge each: its text is on disk before it runs, its answer when it was judged."""
    quiet()
    folder = Path(payload["folder"])
    answers = []
    for seed in payload["seeds"]:
        announce(json.dumps({"seed": seed}))
        place = folder / f"{seed}.py"
        writer = Writer(seed, payload["counts"])
        program = writer.write()
        options = {**program.options, **payload["options"]}
        facts = {"seed": seed, "features": program.features, "left_out": dict(writer.left_out), "options": options}
        place.with_suffix(".facts").write_text(json.dumps(facts), encoding="utf-8")
        place.write_text(program.text, encoding="utf-8")
        found = judged(place, options, telling(announce, seed)) | facts
        place.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")
        answers.append(found)
    return answers


def program_job(payload: dict[str, Any], announce: Announce) -> Answer:
    """Judge one program that lies in a file."""
    quiet()
    return judged(Path(payload["file"]), payload["options"], telling(announce, -1))


def first_job(payload: dict[str, Any], announce: Announce) -> int | None:
    """Judge programs one after the other; return the place of the first that fails in one of the given ways."""
    quiet()
    pins = {tuple(pin) for pin in payload["pins"]}
    for place, file in enumerate(payload["files"]):
        announce(json.dumps({"seed": place}))
        if pins & set(pins_of(judged(Path(file), payload["options"], telling(announce, place)))):
            return place
    return None


def first_failing(pool: Pool, files: Sequence[Path], options: Mapping[str, Any], pins: Sequence[Pin]) -> int | None:
    """Return the place of the first program that fails as it should; whoever dies on the way is asked by itself."""
    place = 0
    while place < len(files):
        rest = files[place:]
        payload = {"files": [str(file) for file in rest], "options": dict(options), "pins": [list(pin) for pin in pins]}
        outcome = pool.submit(FIRST_JOB, payload, limits=Limits(seconds=SECONDS * len(rest))).result()
        if outcome.ending is Ending.RETURNED:
            found: int | None = outcome.value
            return None if found is None else place + found
        died = place + int(phase_of(outcome).get("seed", 0))
        if set(pins) & set(pins_of(answer_of(outcome))):
            return died
        place = died + 1
    return None


def pin_of(answer: Mapping[str, Any]) -> Pin:
    """Return what a failure is recognised by: its kind, and where the compiler raises, the error and the function."""
    return pins_of(answer)[0]


def pins_of(answer: Mapping[str, Any]) -> list[Pin]:
    """Return every way in which a program differs; none where it does not."""
    if answer["status"] != "differs":
        return []
    return [(entry["kind"], entry["error"], entry["frame"]) for entry in answer["signatures"]]


def telling(announce: Announce, seed: int) -> ProgressCallback:
    """Return what tells the caller of each run: whoever dies in a candidate's run is the candidate."""
    return lambda event: announce(json.dumps({"seed": seed, "name": event.name, "candidate": event.candidate}))


def judged(place: Path, options: dict[str, Any], progress: ProgressCallback | None = None) -> Answer:
    """Return what the judge says of a program, as plain data."""
    torch.compiler.reset()
    began = time.perf_counter()
    request = request_for("check", {"exact": True, **options})
    try:
        verdict = verdict_on(place, request, progress)
    except ParityError as error:
        return {"status": ERROR, "reasons": [error.message], "seconds": time.perf_counter() - began}
    except Exception as error:  # noqa: BLE001 - an error of ours is an answer of its own, and is counted as such
        return {"status": ERROR, "reasons": [f"{type(error).__name__}: {error}"[:500]], "seconds": 0.0}
    return told(verdict) | {"seconds": time.perf_counter() - began}


def verdict_on(place: Path, request: Request, progress: ProgressCallback | None = None) -> Verdict:
    """Judge the program in a file."""
    torch.manual_seed(0)
    subject = Target(f"{place}:{FACTORY}").load()
    request = settled(request, subject, learns=True)
    settings = settings_of(request, progress=progress)
    return Oracle(subject, plan_of(request, subject), Compiled(recipe_of(request)), settings).judge()


def told(verdict: Verdict) -> Answer:
    """Return what a hunt wants to know of a verdict."""
    return {
        "status": verdict.status.value,
        "severity": verdict.severity.value,
        "kind": verdict.kind,
        "reasons": [reason[:400] for reason in verdict.reasons],
        "signatures": [plain_data(signature) for signature in signatures_of(verdict)],
        "leaves": [leaf.path for leaf in verdict.leaves if leaf.status.value == "differs"],
        "exact": len(verdict.exact),
    }


def phase_of(outcome: Outcome) -> dict[str, Any]:
    """Return which program, and which run of it, a worker was at."""
    try:
        found: dict[str, Any] = json.loads(outcome.phase)
    except ValueError:
        return {}
    return found


def answer_of(outcome: Outcome) -> Answer:
    """Return what became of one program: what its worker says, or how it died."""
    if outcome.ending is Ending.RETURNED:
        found: Answer = outcome.value
        return found
    of_candidate = bool(phase_of(outcome).get("candidate"))
    how = f"the process {outcome.ending.value}"
    if of_candidate and (outcome.ending is Ending.EXITED or outcome.signal in OWN_SIGNALS):
        name = signal.Signals(outcome.signal).name if outcome.signal else "exit"
        return failed(Kind.CRASHES.value, name, f"the compiled program ends its process: {name}", outcome.seconds)
    if of_candidate and outcome.ending is Ending.TIMED_OUT:
        return failed(HANGS, "", f"the compiler does not come to an end in {outcome.seconds:.0f} s", outcome.seconds)
    told_by = f": {outcome.error.type}: {outcome.error.message}" if outcome.error is not None else ""
    return {"status": ERROR, "reasons": [f"{how}{told_by}"[:500]], "seconds": outcome.seconds}


def failed(kind: str, error: str, reason: str, seconds: float) -> Answer:
    """Return the answer on a program that took its process along, or never came to an end."""
    return {
        "status": "differs", "severity": "fails", "kind": kind, "reasons": [reason], "leaves": [], "exact": 0,
        "signatures": [{"kind": kind, "error": error, "frame": ""}], "seconds": seconds,
    }  # fmt: skip


def quiet() -> None:
    """Let a thousand programs not warn of what they are."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
