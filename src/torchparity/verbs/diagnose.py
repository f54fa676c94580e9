"""The whole way from a model that differs to the operation, the stage and the smallest script: `diagnose`.

check, story, graph      one process loads the model, checks it, and judges the graphs that the check has compiled;
                         another tells the story meanwhile, and compiles the graphs with taps
locate and minify        side by side: one reads the taps, the other asks about operations
blame                    on the first small case, while it is made plainer and its script is verified
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, Unpack

from torchparity.compilers.engines import inference_only
from torchparity.compilers.recipe import recipe_of, recipe_plain
from torchparity.diagnosis.blame import Inquiry
from torchparity.diagnosis.investigation import Investigation, OutOfTime
from torchparity.diagnosis.locate import Look, Search, look_at
from torchparity.errors import CaseError, NoFailingGraph, ParityError
from torchparity.judge.isolated import run_in
from torchparity.judge.script import prepare, write_bundle
from torchparity.minifier.driver import start_minify
from torchparity.minifier.job import QUERY_SECONDS, Job
from torchparity.minifier.minified import Minified
from torchparity.minifier.questions import Asked, Budget, BudgetSpent
from torchparity.records import (
    Blame,
    Diagnosis,
    FailingGraph,
    Kind,
    Located,
    Progress,
    Smallest,
    StageCallback,
    Status,
    Story,
    Verdict,
)
from torchparity.report.findings import blame_text
from torchparity.report.page import FACTS, make_folder, write_run
from torchparity.repro.case import Case
from torchparity.request import Options, Request, request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.ahead import Ahead, told
from torchparity.verbs.apart import Examined, examined_apart, story_apart
from torchparity.verbs.asking import open_pool, subject_of
from torchparity.verbs.blame import blame_model
from torchparity.verbs.explain import told_by_dynamo
from torchparity.verbs.failing import Failing, examine, find_in_bundles
from torchparity.verbs.found import SMALL, as_blame, as_located, as_smaller, as_verdict
from torchparity.verbs.locate import What
from torchparity.verbs.minify import leave_issue
from torchparity.verbs.programs import as_smallest, minify_program
from torchparity.workers.outcome import Limits, Outcome
from torchparity.workers.pool import Pool, default_workers

T = TypeVar("T")
# What `minify` leaves of the budget for what comes after it.
RESERVE = 0.25
GRAPH = "graph"


def diagnose(
    what: What,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    out: str | Path | None = None,
    budget: float | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    listen: StageCallback | None = None,
    **options: Unpack[Options],
) -> Diagnosis:
    """Find out everything about a model that differs when compiled: what, where, which stage, the smallest script.

    What the check is asked with holds to the end. With `out`, a folder gets `run.json`, the page, the failing graph and
    the script, each as soon as it is there; what was found is kept when the budget (in seconds) or the user ends it. A
    model that is a `Target` is loaded and run in workers alone; one that is an object is checked in this process.
    """
    request = request_for("a bundle" if isinstance(what, Case) else "diagnose", options)
    subject = what if isinstance(what, Case | Target) else subject_of(what, args, kwargs, input_sets)
    with open_pool(workers or default_workers()) as pool, working_folder(out) as folder:
        limits = limits or Limits(seconds=QUERY_SECONDS)
        case = Diagnosing(subject, request if not isinstance(subject, Case) else subject.request, folder, pool, limits)
        run = Investigation(**case.titles(named=out is not None), budget=budget, listen=listen, save=case.saver(out))
        try:
            with case.ahead:
                return case.run(run, keep_folder=out is not None)
        except KeyboardInterrupt:
            return run.end("interrupted", interrupted=True)


def share_of(left: float | None, one: float = 0.0) -> float | None:
    """Return how much of the time that is left a search for something smaller may take.

    `one` is what a question takes: the last one may be asked right before time is up, and the script is run afterwards.
    """
    return None if left is None else max(left * RESERVE, left * (1 - RESERVE) - 2 * one)


@contextlib.contextmanager
def working_folder(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder of a run: the one that was named, or one that goes away again, as one of which nothing came."""
    if out is not None:
        folder = Path(out)
        made = [path for path in (folder, folder.parent) if not path.exists()]
        make_folder(folder)
        try:
            yield folder
        except ParityError:
            if folder in made and not (folder / FACTS).exists():
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    made[-1].rmdir()
            raise
        return
    with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
        yield Path(name)


class Diagnosing:
    """What one diagnosis looks at, and how it does each of its stages."""

    def __init__(
        self, subject: Case | Target | Subject, request: Request, folder: Path, pool: Pool, limits: Limits
    ) -> None:
        self.subject, self.request, self.folder, self.pool, self.limits = subject, request, folder, pool, limits
        # What is named is loaded elsewhere, and may register the backend that it wants.
        self.recipe = (
            recipe_of(request, dynamic=subject.dynamic) if isinstance(subject, Subject) else recipe_plain(request)
        )
        if self.recipe.engine is not None and (request.train or request.gradients):
            raise inference_only(self.recipe.engine.name)
        self.examined: Examined | None = None
        self.search: Search | None = None
        self.tapped: Future[Outcome] | None = None
        self.asides = ThreadPoolExecutor(3)
        self.telling: Future[Story | None] | None = None
        # What is an object is run in this process, by one thread.
        self.ahead = Ahead(pool, limits, begin=self.tell_story if isinstance(subject, Target) else None)

    def titles(self, *, named: bool) -> dict[str, str]:
        """Return what the diagnosis is of."""
        title = self.subject.name if isinstance(self.subject, Case) else self.subject.title()
        return {"subject": title, "backend": self.recipe.backend_name(), "folder": str(self.folder) if named else ""}

    def saver(self, out: str | Path | None) -> Callable[[Diagnosis], None] | None:
        """Return what writes down what was found so far, and the page of it."""

        def save(found: Diagnosis) -> None:
            write_run(found, self.folder)

        return save if out is not None else None

    def run(self, run: Investigation, *, keep_folder: bool) -> Diagnosis:
        """Go through the stages."""
        if isinstance(self.subject, Target):
            self.aside(self.prepare)
        verdict = run.stage("check", lambda: self.check(run), keep=as_verdict, needed=True)
        if verdict is None:
            return run.end("there was no time to check the model")
        if verdict.status is not Status.DIFFERS:
            return run.end("nothing to find" if verdict.status is Status.SAME else "the check has no answer")
        telling = self.tell_story()
        run.stage("story", lambda: waited(telling, run), keep=lambda story: {"story": story})
        failing = run.stage("graph", lambda: self.failing(verdict, run), keep=lambda found: {})
        if failing is None and not none_fails(run.error):
            return run.end("the graphs were not judged")
        if failing is None:
            run.stage("blame", lambda: self.blame_whole(verdict, run), keep=as_blame)
            run.stage("minify", lambda: self.program(verdict, run), keep=lambda small: {"smallest": small})
            return run.end("no graph of the model fails by itself")
        run.keep(graph=self.drawn(failing))

        self.tapped = self.ahead.of(failing.case)
        locating = self.aside(lambda: self.locate(failing, run))
        accusing: list[Future[Blame]] = []

        def accuse(folder: Path) -> None:
            accusing.append(self.aside_with_copy(folder, run))

        small = run.stage("minify", lambda: self.minify(failing, run, accuse, locating), keep=as_smaller)
        if small is not None and small.reproduced == (0, 0):
            return run.end("interrupted", interrupted=True)
        located = run.stage("locate", lambda: waited(locating, run), keep=as_located)
        if located is None:
            run.stage("locate", lambda: self.locate_closely(small, run), keep=as_located)
        if not accusing:
            accusing.append(self.aside(lambda: self.blame(failing.folder, run)))
        blame = run.stage("blame", lambda: waited(accusing[0], run), keep=as_blame)
        if small is not None and blame is not None and keep_folder:
            leave_issue(small, self.folder / SMALL, blame=blame_text(blame))
        return run.end()

    def prepare(self) -> None:
        """Have ready what bundles want, while somebody else checks."""
        prepare()
        self.recipe.backend_source()

    def aside(self, work: Callable[[], T]) -> Future[T]:
        """Begin something that does not need what is done meanwhile."""
        return self.asides.submit(work)

    def aside_with_copy(self, folder: Path, run: Investigation) -> Future[Blame]:
        """Begin to look for the stage in a copy of a case that is small, and may still be made plainer."""
        held = tempfile.TemporaryDirectory(prefix="torchparity-")
        copied = Path(shutil.copytree(folder, Path(held.name) / folder.name))

        def blame() -> Blame:
            with held:
                return self.blame(copied, run)

        return self.aside(blame)

    # --- the stages ------------------------------------------------------------------------------------

    def check(self, run: Investigation) -> Verdict:
        """Judge the whole, and keep what it shows of the graphs."""

        def hear(event: Progress) -> None:
            if event.bundle:
                self.ahead.hear(event)
            else:
                run.tell(f"run {event.run} of {event.runs}: {event.name}")

        graphs, limits, ahead = self.folder / GRAPH, run.limits(self.limits), self.ahead.folder(self.request)
        if isinstance(self.subject, Case):
            folder = write_bundle(self.subject, graphs)
            return run_in(self.pool, folder, limits=limits, progress=hear)
        graphs.mkdir(exist_ok=True)
        if isinstance(self.subject, Target):
            self.examined = examined_apart(
                self.subject, self.request, graphs, self.pool, limits, progress=hear, ahead=ahead
            )
        else:
            self.examined = examine(self.subject, self.request, graphs, progress=hear, ahead=ahead)
        return self.examined.verdict

    def tell_story(self) -> Future[Story | None]:
        """Begin with the story, unless that was begun already."""
        self.telling = self.telling or self.aside(self.story)
        return self.telling

    def story(self) -> Story | None:
        """Tell what Dynamo does with the model."""
        if isinstance(self.subject, Case) or self.recipe.engine is not None:
            return None
        if isinstance(self.subject, Target):
            return story_apart(self.subject, self.request, self.pool, self.limits)
        return told_by_dynamo(self.subject, self.request)

    def failing(self, verdict: Verdict, run: Investigation) -> Failing:
        """Return the graph that fails, and how it does; its bundle is `graph` in the run's folder."""
        graphs = self.folder / GRAPH
        if isinstance(self.subject, Case):
            return Failing(folder=graphs, verdict=verdict)
        assert self.examined is not None
        run.keep(notes=self.examined.notes)
        if self.examined.failing and self.examined.how is not None:
            found = Failing(folder=graphs / self.examined.failing, verdict=self.examined.how)
        else:
            found = find_in_bundles(
                self.subject,
                self.request,
                graphs,
                self.pool,
                limits=run.limits(self.limits),
                judged=self.examined.graphs,
                whole=self.examined.verdict,
                listen=run.tell,
                note=lambda notes: run.keep(notes=tuple(dict.fromkeys([*run.found.notes, *notes]))),
            )
        return self.settled(found)

    def settled(self, found: Failing) -> Failing:
        """Let the bundle that fails take the place of the folder that it was found in."""
        aside = self.folder / f".{GRAPH}"
        (self.folder / GRAPH).rename(aside)
        (aside / found.folder.name).rename(self.folder / GRAPH)
        shutil.rmtree(aside, ignore_errors=True)
        return Failing(folder=self.folder / GRAPH, verdict=found.verdict)

    def drawn(self, failing: Failing) -> FailingGraph:
        """Return the facts and the picture of a graph, as far as a worker could run it."""
        case = failing.case
        try:
            self.look: Look | None = look_at(failing.folder, self.pool, self.limits)
        except ParityError:
            self.look = None
        return FailingGraph(
            name=case.name,
            level=case.level,
            direction=case.direction,
            operations=case.compute_nodes,
            inputs=len(case.inputs),
            kind=failing.verdict.kind,
            nodes=self.look.nodes if self.look is not None else (),
        )

    def locate(self, failing: Failing, run: Investigation) -> Located:
        """Name the operation that introduces the error, where one compilation tells."""
        self.search = Search(
            failing.folder,
            self.pool,
            limits=run.limits(self.limits),
            verdict=failing.verdict,
            look=self.look,
            tapped=self.tapped,
        )
        located = self.search.at_once()
        if located is None:
            raise CaseError("one compilation does not tell", hint="asked again when the graph is small")
        return located

    def locate_closely(self, small: Minified | None, run: Investigation) -> Located | None:
        """Name the operation with many compilations, fewer where the failure has a small graph."""
        if self.search is None:
            return None
        self.search.limits, self.search.listen = run.limits(self.limits), run.tell
        return self.search.closely(self.folder / SMALL / "case" if small is not None else None)

    def minify(
        self, failing: Failing, run: Investigation, found: Callable[[Path], None], locating: Future[Located]
    ) -> Minified:
        """Make the graph as small as it goes, or as the budget allows; what locate finds meanwhile is a hint."""

        def hear(asked: Asked) -> None:
            doing = f"query {asked.number}: {asked.compute_nodes} operations; best {asked.best}"
            run.say(doing, asked.expected_seconds if asked.left else None)

        budget = share_of(run.left, failing.verdict.seconds)
        try:
            return start_minify(
                failing.case,
                Job(limits=run.limits(self.limits)),
                self.pool,
                out=self.folder / SMALL,
                budget=Budget(seconds=budget),
                width=self.pool.workers,
                listen=hear,
                verdict=failing.verdict,
                found=found,
                where=functools.partial(told, locating, self.tapped),
            )
        except BudgetSpent:
            raise OutOfTime from None

    def blame(self, folder: Path, run: Investigation) -> Blame:
        """Name the stage of the compiler that does it."""
        return Inquiry(folder, self.pool, limits=run.limits(self.limits)).run()

    def program(self, verdict: Verdict, run: Investigation) -> Smallest | None:
        """Make the model small as a program of Python, where none of its graphs shows the failure."""
        if isinstance(self.subject, Case) or self.recipe.engine is not None:
            return None
        began = time.monotonic()
        budget = share_of(run.left)
        found = minify_program(self.subject, self.request, self.pool, verdict=verdict, budget=budget, say=run.tell)
        return as_smallest(found, self.folder / SMALL, time.monotonic() - began) if found is not None else None

    def blame_whole(self, verdict: Verdict, run: Investigation) -> Blame:
        """Name what lies between the graphs."""
        if isinstance(self.subject, Case):
            raise CaseError(f"{self.subject.name} does not fail here", hint="`torchparity run` shows the verdict")
        if verdict.kind == Kind.CRASHES.value and not isinstance(self.subject, Target):
            raise CaseError("the compiler would crash this process too", hint="look at the graphs one by one")
        return blame_model(self.subject, self.request, self.pool, run.limits(self.limits), listen=run.tell)


def waited(future: Future[T], run: Investigation) -> T:
    """Wait for something that was begun before, no longer than the budget allows."""
    try:
        return future.result(timeout=run.left)
    except TimeoutError:
        raise OutOfTime from None


def none_fails(error: ParityError | None) -> bool:
    """Tell whether every graph was judged, and none fails: only then something else is to blame."""
    return isinstance(error, NoFailingGraph) and not error.unknown
