"""What workers do in a hunt: draw programs and judge each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchparity import torchapi
from torchparity.errors import ParityError
from torchparity.hunting.grammar import Writer
from torchparity.hunting.openings import read_openings
from torchparity.judge.isolated import phase_of, verdict_of
from torchparity.minifier.programs import judged_program, quiet, telling
from torchparity.programs.script import HANGS
from torchparity.records import Progress, Severity, Signature, Status, Verdict, signatures_of
from torchparity.request import Request, request_for
from torchparity.workers.outcome import Ending, Outcome
from torchparity.workers.together import asking

Announce = Callable[[str], None]
Answer = dict[str, Any]
BATCH_JOB = "torchparity.hunting.jobs:batch_job"
PRELOAD = ("torchparity.hunting.jobs", "torchparity.judge.isolated")
# Whoever settles a find goes first: it is one process beside a crowd.
DRAWING = 10
# What a hunt says of a program beside same, differs and unknown: the checker itself failed.
ERROR = "error"
# A feature that is a counter of the compiler which a program has moved: a pass, a pattern, a fallback.
FIRED = "fired:"


def batch_job(payload: dict[str, Any], announce: Announce) -> None:
    """Draw programs from seeds and judge each: its text is on disk before it runs, its answer when it was judged."""
    quiet()
    os.nice(DRAWING)
    with torchapi.built_by(asking(payload["builder"])):
        draw_and_judge(payload, announce)


def draw_and_judge(payload: dict[str, Any], announce: Announce) -> None:
    """Do so with the compilers as they are here."""
    folder = Path(payload["folder"])
    openings = read_openings(Path(payload["openings"]))
    for seed in payload["seeds"]:
        tell = telling(announce, str(seed))
        tell(Progress(run=0, runs=0, name="drawing"))
        place = folder / f"{seed}.py"
        writer = Writer(
            seed, payload["counts"], liked=payload["liked"],
            openings=openings, share=payload["share"], special=payload["special"],
        )  # fmt: skip
        program = writer.write()
        options = {**program.options, **payload["options"]}
        facts = {"seed": seed, "features": program.features, "left_out": dict(writer.left_out), "options": options}
        place.with_suffix(".facts").write_text(json.dumps(facts), encoding="utf-8")
        place.write_text(program.text, encoding="utf-8")
        began, before = time.perf_counter(), torchapi.compiler_counts()
        try:
            found = told(judged_program(place, request_of(options), tell))
        except ParityError as error:
            found = mistaken(error.message)
        except Exception as error:  # noqa: BLE001 - an error of ours is an answer of its own, and is counted as such
            found = mistaken(f"{type(error).__name__}: {error}")
        fired = [f"{FIRED}{name}" for name in torchapi.compiler_counts() - before]
        found |= {**facts, "features": [*program.features, *fired], "seconds": time.perf_counter() - began}
        place.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")


def request_of(options: dict[str, Any]) -> Request:
    """Return how a hunt judges a program that is compiled so."""
    return request_for("check", {"exact": True, **options})


def told(verdict: Verdict) -> Answer:
    """Return what a hunt wants to know of a verdict."""
    return {
        "status": verdict.status.value,
        "severity": verdict.severity.value,
        "kind": verdict.kind,
        "reasons": [reason[:400] for reason in verdict.reasons],
        "signatures": [asdict(signature) for signature in signatures_of(verdict)],
        "leaves": leaves_of(verdict),
        "exact": len(verdict.exact),
        "seconds": verdict.seconds,
    }


def leaves_of(verdict: Verdict) -> list[str]:
    """Return the leaves that differ."""
    return [leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS]


def mistaken(reason: str) -> Answer:
    """Return the answer where the checker itself failed."""
    return {"status": ERROR, "reasons": [reason[:500]]}


def answer_of(outcome: Outcome) -> Answer:
    """Return what became of one program: what its worker says, or how it died."""
    try:
        verdict = verdict_of(outcome, subject="program", backend="the compiler")
    except ParityError as error:
        return mistaken(error.message)
    if outcome.ending is Ending.RETURNED or verdict.status is Status.DIFFERS:
        return told(verdict)
    at = phase_of(outcome.phase)
    if outcome.ending is Ending.TIMED_OUT and at is not None and at.candidate:
        reason = f"the compiler does not come to an end in {outcome.seconds:.0f} s"
        hangs = {"status": Status.DIFFERS.value, "severity": Severity.FAILS.value, "kind": HANGS, "reasons": [reason]}
        return told(verdict) | hangs | {"signatures": [asdict(Signature(kind=HANGS, summary=reason))]}
    return mistaken("; ".join(verdict.reasons))
