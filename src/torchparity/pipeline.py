"""The whole way from a model that differs to the operation, the stage and the smallest script: `diagnose`."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchparity.diagnosis.blame import blame as blame_case
from torchparity.diagnosis.investigation import Investigation, OutOfTime
from torchparity.diagnosis.locate import Search
from torchparity.diagnosis.picture import draw
from torchparity.errors import CaseError, NoFailingGraph, ParityError, UsageError
from torchparity.execute.isolated import run_bundle
from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool, default_workers
from torchparity.jobs.arguments import recipe_for, subject_of
from torchparity.jobs.checking import check
from torchparity.jobs.finding import blame_model, find_failing
from torchparity.jobs.minifying import leave_issue, minify
from torchparity.jobs.watching import CaptureWarning, explain
from torchparity.minifier.chase import BudgetSpent, Question
from torchparity.minifier.driver import SECONDS as QUERY_SECONDS
from torchparity.minifier.driver import Minified
from torchparity.minifier.log import curve_of
from torchparity.records import (
    Blame,
    Diagnosis,
    FailingGraph,
    Kind,
    Located,
    Progress,
    ProgressCallback,
    Smallest,
    StageCallback,
    Status,
    Story,
    Verdict,
)
from torchparity.report.findings import blame_text
from torchparity.report.page import make_folder, write_run
from torchparity.repro.bundle import write_bundle
from torchparity.repro.case import Case
from torchparity.repro.source import SCRIPT
from torchparity.run.engines import inference_only
from torchparity.run.subject import Subject

# What `minify` leaves of the budget for what comes after it.
RESERVE = 0.25
GRAPH, SMALL = "graph", "small"


def diagnose(
    what: Case | Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    budget: float | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    check_with: Callable[[ProgressCallback], Verdict] | None = None,
    listen: StageCallback | None = None,
    **how: Any,
) -> Diagnosis:
    """Find out everything about a model that differs when compiled: what, where, which stage, the smallest script.

    `how` is what `find_failing` takes besides: `backend`, `mode`, `dynamic`, `train`, `backward`, `autocast`, ... With
    `out`, a folder gets `run.json`, the page, the failing graph and the script, each as soon as it is there; what was
    found is kept when the budget (in seconds) or the user ends it. `check_with` judges the model instead of a check in
    this process, which a crash of the compiler would take along.
    """
    subject = what if isinstance(what, Case) else subject_of(what, args, kwargs, ())
    look = Look(subject, Path(out) if out is not None else None, limits or Limits(seconds=QUERY_SECONDS), how)
    run = Investigation(**look.titles(), budget=budget, listen=listen, save=look.save)
    try:
        with Pool(workers=workers or default_workers()) as pool, contextlib.closing(look):
            verdict = run.stage("check", lambda: look.check(run, pool, check_with), keep=as_verdict, needed=True)
            if verdict is None:
                return run.end("there was no time to check the model")
            if verdict.status is not Status.DIFFERS:
                return run.end("nothing to find" if verdict.status is Status.SAME else "the check has no answer")

            run.stage("story", look.story, keep=lambda story: {"story": story})
            failing = run.stage("graph", lambda: look.failing(verdict, run, pool), keep=look.drawn)
            if failing is None and not none_fails(run.error):
                return run.end("the graphs were not judged")
            if failing is None:
                run.stage("blame", lambda: look.blame_whole(verdict, run), keep=as_blame)
                return run.end("no graph of the model fails by itself")
            case, seen = failing

            located = run.stage("locate", lambda: look.locate(case, seen, run, pool), keep=as_located)
            small = run.stage("minify", lambda: look.minify(case, seen, run, pool), keep=look.smallest)
            if small is not None and small.reproduced == (0, 0):
                return run.end("interrupted", interrupted=True)

            if located is None:
                run.stage("locate", lambda: look.locate_closely(small, run), keep=as_located)
            guilty = small.case if small is not None else case
            blame = run.stage("blame", lambda: look.blame(guilty, run, pool), keep=as_blame)
            if small is not None and blame is not None and look.folder is not None:
                leave_issue(small, look.folder / SMALL, blame=blame_text(blame))
    except KeyboardInterrupt:
        return run.end("interrupted", interrupted=True)
    return run.end()


class Look:
    """What one diagnosis looks at, and how it does each of its stages."""

    def __init__(self, subject: Case | Subject, folder: Path | None, limits: Limits, how: dict[str, Any]) -> None:
        self.subject, self.folder, self.limits, self.how = subject, folder, limits, how
        self.search: Search | None = None
        if isinstance(subject, Case) and how:
            raise UsageError(
                f"a bundle says itself how it is compiled; {', '.join(how)} cannot be changed",
                hint="diagnose the model, or capture it again",
            )
        self.recipe = subject.recipe if isinstance(subject, Case) else recipe_for(subject, **recipe_options(how))
        if self.recipe.engine is not None and (how.get("train") or how.get("backward")):
            raise inference_only(self.recipe.engine.name)
        if folder is not None:
            make_folder(folder)

    def close(self) -> None:
        """Remove what was only needed to look."""
        if self.search is not None:
            self.search.close()

    def titles(self) -> dict[str, str]:
        """Return what the diagnosis is of."""
        title = self.subject.name if isinstance(self.subject, Case) else self.subject.title()
        folder = str(self.folder) if self.folder is not None else ""
        return {"subject": title, "backend": self.recipe.backend_name(), "folder": folder}

    def save(self, found: Diagnosis) -> None:
        """Write what was found so far, and the page of it."""
        if self.folder is not None:
            write_run(found, self.folder)

    def check(
        self, run: Investigation, pool: Pool, check_with: Callable[[ProgressCallback], Verdict] | None
    ) -> Verdict:
        """Judge the whole."""

        def hear(event: Progress) -> None:
            run.tell(f"run {event.run} of {event.runs}: {event.name}")

        if isinstance(self.subject, Case):
            with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
                folder = write_bundle(self.subject, Path(name) / "case")
                return run_bundle(folder, pool=pool, limits=run.limits(self.limits), progress=hear)
        return check_with(hear) if check_with is not None else check(self.subject, progress=hear, **self.how)

    def story(self) -> Story | None:
        """Tell what Dynamo does with the model. The backend is left out: it was just compiled, and may crash here."""
        if isinstance(self.subject, Case):
            return None
        how = {name: value for name, value in self.how.items() if name not in ("backend", "mode", "options")}
        return explain(self.subject, backend="eager", calls=1, **how)

    def failing(self, verdict: Verdict, run: Investigation, pool: Pool) -> tuple[Case, Verdict]:
        """Return the graph that fails, and how it does."""
        if isinstance(self.subject, Case):
            return self.subject, verdict
        run.tell("capturing, and judging every graph")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CaptureWarning)
            try:
                return find_failing(self.subject, pool=pool, limits=run.limits(self.limits), **self.how)
            finally:
                told = [str(entry.message) for entry in caught if issubclass(entry.category, CaptureWarning)]
                run.keep(notes=tuple(dict.fromkeys(told)))

    def drawn(self, failing: tuple[Case, Verdict]) -> dict[str, FailingGraph]:
        """Return the facts and the picture of a graph; keep its bundle."""
        case, verdict = failing
        if self.folder is not None:
            write_bundle(case, self.folder / GRAPH)
        try:
            nodes = draw(case)
        except ParityError:  # A backend that only the workers can import; what is known of the graph is still told.
            nodes = ()
        graph = FailingGraph(
            name=case.name,
            level=case.level,
            direction=case.direction,
            operations=case.compute_nodes,
            inputs=len(case.inputs),
            kind=verdict.kind,
            nodes=nodes,
        )
        return {"graph": graph}

    def locate(self, case: Case, verdict: Verdict, run: Investigation, pool: Pool) -> Located:
        """Name the operation that introduces the error, where one compilation tells."""
        limits = run.limits(self.limits)
        self.search = Search(case, pool, limits=limits, listen=run.tell, verdict=verdict)
        located = self.search.at_once()
        if located is None:
            raise CaseError(
                "one compilation does not tell",
                hint="asked again when the graph is small",
            )
        return located

    def locate_closely(self, small: Minified | None, run: Investigation) -> Located | None:
        """Name the operation with many compilations, fewer where the failure has a small graph."""
        if self.search is None:
            return None
        self.search.limits = run.limits(self.limits)
        return self.search.closely(small.case if small is not None else None)

    def minify(self, case: Case, verdict: Verdict, run: Investigation, pool: Pool) -> Minified:
        """Make the graph as small as it goes, or as the budget allows."""

        def hear(question: Question) -> None:
            doing = f"query {question.number}: {question.compute_nodes} operations; best {question.best}"
            run.say(doing, question.expected_seconds if question.left else None)

        budget = run.left * (1 - RESERVE) if run.left is not None else None
        out = self.folder / SMALL if self.folder is not None else None
        try:
            return minify(
                case, out=out, budget=budget, limits=run.limits(self.limits), listen=hear, pool=pool, verdict=verdict
            )
        except BudgetSpent:
            raise OutOfTime from None

    def smallest(self, small: Minified) -> dict[str, Smallest]:
        """Return what was made small, as a record."""
        path = SCRIPT if small.script_is_plain else f"case/{SCRIPT}"
        record = Smallest(
            operations=small.compute_nodes,
            inputs=len(small.inputs),
            started_from=small.started_from,
            script=small.script,
            script_path=f"{SMALL}/{path}" if self.folder is not None else "",
            output=small.script_output,
            title=small.title,
            plain=small.script_is_plain,
            reproduced=small.reproduced,
            queries=small.queries,
            seconds=small.seconds,
            complete=small.complete,
            failure=str((small.signature or {}).get("summary", "")),
            others=tuple(small.others),
            curve=curve_of(small.log),
        )
        return {"smallest": record}

    def blame(self, case: Case, run: Investigation, pool: Pool) -> Any:
        """Name the stage of the compiler that does it."""
        return blame_case(case, pool=pool, limits=run.limits(self.limits), listen=run.tell)

    def blame_whole(self, verdict: Verdict, run: Investigation) -> Any:
        """Name what lies between the graphs, in this process."""
        if isinstance(self.subject, Case):
            raise CaseError(f"{self.subject.name} does not fail here", hint="`torchparity run` shows the verdict")
        if verdict.kind == Kind.CRASHES.value:
            raise CaseError("the compiler would crash this process too", hint="look at the graphs one by one")
        return blame_model(self.subject, listen=run.tell, **self.how)


def as_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return what a diagnosis keeps of a verdict."""
    return {"verdict": verdict, "environment": verdict.environment}


def as_located(located: Located) -> dict[str, Located]:
    """Return what a diagnosis keeps of where the graph goes wrong."""
    return {"located": located}


def as_blame(blame: Blame) -> dict[str, Blame]:
    """Return what a diagnosis keeps of who is to blame."""
    return {"blame": blame}


def none_fails(error: ParityError | None) -> bool:
    """Tell whether every graph was judged, and none fails: only then something else is to blame."""
    return isinstance(error, NoFailingGraph) and not error.unknown


def recipe_options(how: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that say how the model is compiled."""
    return {name: how[name] for name in ("backend", "mode", "dynamic", "options", "config") if name in how}
