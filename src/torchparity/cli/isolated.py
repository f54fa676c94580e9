"""A check of a target inside a worker: the target is loaded there, not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchparity.cli.target import load_subject
from torchparity.execute.isolated import answer, judge_elsewhere
from torchparity.execute.outcome import Limits
from torchparity.jobs.checking import check
from torchparity.records import ProgressCallback, Verdict

JOB = "torchparity.cli.isolated:target_job"


def target_job(payload: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    """Load a target and check it, in the process that this is called in."""

    def judge(tell: ProgressCallback) -> Verdict:
        subject = load_subject(payload["target"], device=payload["device"])
        return check(subject, progress=tell, **payload["options"])

    return answer(judge, announce)


def check_elsewhere(
    target: str,
    options: dict[str, Any],
    *,
    device: str | None,
    limits: Limits,
    progress: ProgressCallback | None,
) -> Verdict:
    """Check a target in another process: whatever the compiler does there, this one goes on."""
    payload = {"target": target, "device": device, "options": options}
    return judge_elsewhere(
        JOB, payload, subject=target, backend=str(options["backend"]), limits=limits, progress=progress
    )
