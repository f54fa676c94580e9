"""`minify`: the smallest script that still fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from torchparity.errors import UsageError
from torchparity.fleet.cluster import Questions
from torchparity.minifier.driver import continue_minify, start_minify
from torchparity.minifier.job import QUERY_SECONDS, Job
from torchparity.minifier.log import resumed
from torchparity.minifier.minified import Minified
from torchparity.minifier.questions import Asked, Budget
from torchparity.records import Verdict
from torchparity.report.issue import write_issue
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case
from torchparity.request import Options, request_for
from torchparity.verbs.asking import open_pool
from torchparity.verbs.locate import What, bundle_of
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool, default_workers


def minify(
    what: What,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    out: str | Path | None = None,
    check: str | None = None,
    budget: float | None = None,
    queries: int | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    listen: Callable[[Asked], None] | None = None,
    say: Callable[[str], None] | None = None,
    pool: Pool | None = None,
    verdict: Verdict | None = None,
    ray: str | None = None,
    **options: Unpack[Options],
) -> Minified:
    """Return the smallest case found that fails as this one, or the first graph of a model that fails, does.

    Each question runs in a process of its own. The failure is pinned at the start: another kind of failure met on the
    way is kept, and not followed. With `out`, everything is written there as it is found: the smallest case so far,
    the log that `resume_minify` goes on from, at the end the script and an issue to paste. `check` is a command that
    decides instead of the oracle: `{}` in it is the folder of a bundle, exit code 0 is interesting, 1 is not, anything
    else unknown. `budget` is in seconds. `pool` and `verdict` are workers and an answer that are there already.
    `ray` is the address of a Ray cluster (or `"auto"`) whose workers judge.
    """
    if check is not None and not isinstance(what, Case):
        raise UsageError(
            "`--check` decides about a bundle, not about a model", hint="`torchparity capture` writes bundles"
        )
    width = workers or (pool.workers if pool is not None else default_workers())
    job = Job(check=check, limits=limits or Limits(seconds=QUERY_SECONDS))
    folder = Path(out) if out is not None else None
    asking: dict[str, Any] = {"budget": Budget(seconds=budget, queries=queries), "listen": listen}
    with (
        judging(ray, check, width) as judge,
        contextlib.nullcontext(pool) if pool is not None else open_pool(width, compilers=check is None) as own,
    ):
        asking |= judge
        if isinstance(what, Case):
            request_for("a bundle", options)
            small = start_minify(what, job, own, out=folder, verdict=verdict, **asking)
        else:
            with bundle_of("minify", what, args, kwargs, input_sets, options, own, limits=limits, listen=say) as found:
                case, seen = read_bundle(found[0]), found[1]
                if say is not None and seen is not None:
                    say(f"{case.name} fails: {seen.kind}")
                small = start_minify(case, job, own, out=folder, verdict=seen, **asking)
    if folder is not None:
        leave_issue(small, folder)
    return small


def resume_minify(
    folder: str | Path,
    *,
    check: str | None = None,
    budget: float | None = None,
    queries: int | None = None,
    workers: int | None = None,
    listen: Callable[[Asked], None] | None = None,
    ray: str | None = None,
) -> Minified:
    """Go on with a minification that was stopped; no query that was answered is asked again.

    A command that decided must be given again: what stands in a file is not run because it stands there.
    """
    folder = Path(folder)
    begun = resumed(folder).header["check"]
    if begun != check:
        told = f"the command {begun!r}" if begun is not None else "the oracle, and not a command,"
        hint = "give the same command again: --check COMMAND" if begun is not None else "leave out --check"
        raise UsageError(f"{told} decided in {folder} so far", hint=hint)
    width = workers or default_workers()
    asking: dict[str, Any] = {"budget": Budget(seconds=budget, queries=queries), "listen": listen}
    with judging(ray, check, width) as judge, open_pool(width, compilers=check is None) as pool:
        small = continue_minify(folder, pool, **asking, **judge)
    leave_issue(small, folder)
    return small


@contextlib.contextmanager
def judging(ray: str | None, check: str | None, width: int) -> Iterator[dict[str, Any]]:
    """Say how many questions are asked at once, and who answers them: a Ray cluster where one is named."""
    if ray is None:
        yield {"width": width}
        return
    if check is not None:
        raise UsageError("a command decides on this machine", hint="leave out --ray, or --check")
    questions = Questions(ray)
    try:
        yield {"width": max(width, questions.width), "judge": questions.judge}
    finally:
        questions.close()


def leave_issue(small: Minified, folder: Path, *, blame: str = "") -> None:
    """Write `issue.md` beside a script that was verified, with who is to blame where that is known."""
    if not small.script_output:
        return
    environment = small.case.environment
    found = (
        f"Found in a graph of {small.started_from['operations']} operations and made small by torchparity "
        f"{environment.get('torchparity', '')} ({small.queries} queries)."
    )
    text = write_issue(
        title=small.title or f"{small.case.recipe.backend_name()} differs from eager in {small.signature.kind}",
        script=small.script,
        output=small.script_output,
        reproduced=small.reproduced,
        environment=environment,
        found=found,
        blame=blame,
    )
    (folder / "issue.md").write_text(text, encoding="utf-8")
