"""Jobs that make a failure small."""

from __future__ import annotations

from pathlib import Path

from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool
from torchparity.minifier.chase import Budget, Listener
from torchparity.minifier.driver import SECONDS as QUERY_SECONDS
from torchparity.minifier.driver import Job, Minified, continue_minify, start_minify
from torchparity.records import (
    Verdict,
)
from torchparity.report.issue import write_issue
from torchparity.repro.case import Case


def minify(
    case: Case,
    *,
    out: str | Path | None = None,
    check: str | None = None,
    budget: float | None = None,
    queries: int | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    listen: Listener | None = None,
    pool: Pool | None = None,
    verdict: Verdict | None = None,
) -> Minified:
    """Return the smallest case found that fails as this one does: verified, with its script and its log.

    Each question runs in a process of its own. The failure is pinned at the start: another kind of failure met on the
    way is kept, and not followed. With `out`, everything is written there as it is found: the smallest case so far,
    the log that `resume_minify` goes on from, at the end the script and an issue to paste. `check` is a command that
    decides instead of the oracle: `{}` in it is the folder of a bundle, exit code 0 is interesting, 1 is not, anything
    else unknown. `budget` is in seconds. `pool` and `verdict` are workers and an answer that are there already.
    """
    job = Job(check=check, limits=limits or Limits(seconds=QUERY_SECONDS), pool=pool, verdict=verdict)
    small = start_minify(
        case,
        job,
        out=Path(out) if out is not None else None,
        budget=Budget(seconds=budget, queries=queries),
        workers=workers,
        listen=listen,
    )
    if out is not None:
        leave_issue(small, Path(out))
    return small


def resume_minify(
    folder: str | Path,
    *,
    budget: float | None = None,
    queries: int | None = None,
    workers: int | None = None,
    listen: Listener | None = None,
) -> Minified:
    """Go on with a minification that was stopped; no query that was answered is asked again."""
    small = continue_minify(
        Path(folder), budget=Budget(seconds=budget, queries=queries), workers=workers, listen=listen
    )
    leave_issue(small, Path(folder))
    return small


def leave_issue(small: Minified, folder: Path, *, blame: str = "") -> None:
    """Write `issue.md` beside a script that was verified, with who is to blame where that is known."""
    if not small.script_output:
        return
    before = small.started_from
    found = (
        f"Found in a graph of {before['operations']} operations and made small by torchparity "
        f"{small.environment.get('torchparity', '')} ({small.queries} queries)."
    )
    kind = str((small.signature or {}).get("kind", ""))
    text = write_issue(
        title=small.title or f"{small.recipe.backend_name()} differs from eager in {kind}",
        script=small.script,
        output=small.script_output,
        reproduced=small.reproduced,
        environment=small.environment,
        found=found,
        blame=blame,
    )
    (folder / "issue.md").write_text(text, encoding="utf-8")
