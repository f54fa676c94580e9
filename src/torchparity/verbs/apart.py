"""A model that is named, asked about in another process: whatever it does there, this one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchparity.compilers.recipe import recipe_plain
from torchparity.compilers.written import request_to_json
from torchparity.errors import ResourceError, error_from
from torchparity.judge.isolated import describe, phase_of, told_outside, verdict_of
from torchparity.records import Blame, ProgressCallback, Story, Verdict
from torchparity.records.wire import record_from
from torchparity.request import Request
from torchparity.run.target import Target
from torchparity.verbs.remembering import home_of_checks
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

JOB = "torchparity.verbs.jobs:target_job"
VERDICT = "verdict.json"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What one check of a model has shown: the verdict, and which of its graphs were judged by themselves.

    `failing` is the name of the graph that fails, whose bundle was written. `graphs` is how many agree.
    """

    verdict: Verdict
    failing: str = ""
    how: Verdict | None = None
    graphs: int = 0
    notes: tuple[str, ...] = ()


def ask(
    work: str,
    target: Target,
    request: Request,
    pool: Pool,
    limits: Limits,
    *,
    folder: Path | None = None,
    ahead: Path | None = None,
    hear: Callable[[str], None] | None = None,
    named: bool = False,
) -> Outcome:
    """Have a worker load a target and do one thing with it."""
    payload = {
        "work": work,
        "target": asdict(target),
        "request": request_to_json(request),
        "folder": str((folder or Path()).resolve()),
        "ahead": str(ahead.resolve()) if ahead is not None else None,
        "named": named,
        "home": home_of_checks(),
    }
    return pool.submit(JOB, payload, limits=limits, on_phase=hear).result()


def answered(outcome: Outcome, what: str) -> dict[str, Any]:
    """Return what a worker answered, or raise what it has to say."""
    if outcome.ending is not Ending.RETURNED:
        raise ResourceError(f"{what}: the process {describe(outcome)}", hint="run the model alone in Python to see why")
    if "error" in outcome.value:
        raise error_from(outcome.value["error"])
    value: dict[str, Any] = outcome.value
    return value


def hearing(progress: ProgressCallback | None) -> Callable[[str], None]:
    """Return what hears of the runs of a worker."""

    def hear(phase: str) -> None:
        event = phase_of(phase)
        if progress is not None and event is not None:
            progress(event)

    return hear


def checked_apart(
    target: Target, request: Request, pool: Pool, limits: Limits, *, progress: ProgressCallback | None = None
) -> Verdict:
    """Check a target in another process: whatever the compiler does there, this one goes on."""
    outcome = ask("check", target, request, pool, limits, hear=hearing(progress))
    return verdict_of(outcome, subject=target.title(), backend=recipe_plain(request).backend_name())


def examined_apart(
    target: Target,
    request: Request,
    folder: Path,
    pool: Pool,
    limits: Limits,
    *,
    progress: ProgressCallback | None = None,
    ahead: Path | None = None,
) -> Examined:
    """Check a target in another process and judge the graphs that were compiled; the verdict survives a crash."""
    outcome = ask(
        "examine", target, request, pool, limits, folder=folder, ahead=ahead, hear=hearing(progress), named=True
    )
    if outcome.ending is Ending.RETURNED and "error" not in outcome.value:
        examined = record_from(Examined, outcome.value["examined"])
        return replace(examined, verdict=told_outside(examined.verdict, outcome.output))
    if (folder / VERDICT).is_file():  # What came after the check took the process along.
        kept = record_from(Verdict, json.loads((folder / VERDICT).read_text(encoding="utf-8")))
        return Examined(verdict=kept, notes=(f"judging its graphs, the process {describe(outcome)}",))
    backend = recipe_plain(request).backend_name()
    return Examined(verdict=verdict_of(outcome, subject=target.title(), backend=backend))


def captured_apart(
    target: Target, request: Request, folder: Path, pool: Pool, limits: Limits
) -> tuple[list[str], list[str]]:
    """Capture a target in another process; return the names of the bundles, and notes."""
    found = answered(ask("capture", target, request, pool, limits, folder=folder), "capturing the model")
    return list(found["names"]), list(found["notes"])


def story_apart(target: Target, request: Request, pool: Pool, limits: Limits) -> Story:
    """Tell the story of a target in another process."""
    return record_from(Story, answered(ask("story", target, request, pool, limits), "telling the story")["story"])


def whole_apart(
    target: Target, request: Request, pool: Pool, limits: Limits, *, listen: Callable[[str], None] | None = None
) -> Blame:
    """Look for what makes a target differ whose graphs agree, in another process."""
    outcome = ask("whole", target, request, pool, limits, hear=listen, named=True)
    return record_from(Blame, answered(outcome, "looking at the whole model")["blame"])
