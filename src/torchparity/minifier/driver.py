"""Minify a case: the search runs in a worker, asks here, and is begun again where it dies; then verify the script."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torchparity.errors import NothingFails, ParityError, ResourceError, UsageError, error_from
from torchparity.judge.isolated import BUNDLE_JOB, describe, verdict_of
from torchparity.judge.script import write_bundle, write_script
from torchparity.minifier.answers import Answer, answer_of
from torchparity.minifier.commands import run_check
from torchparity.minifier.delivery import VERIFICATIONS, Delivered, deliver
from torchparity.minifier.job import Job
from torchparity.minifier.log import NAME, Log, resumed
from torchparity.minifier.minified import Minified
from torchparity.minifier.questions import Asked, Budget, BudgetSpent
from torchparity.minifier.rehearsal import Rehearsal
from torchparity.minifier.searcher import FOUND, PASSING, QUERIES, SEARCH_JOB, START
from torchparity.minifier.trials import NAME as TRYING
from torchparity.minifier.trials import fatal_key
from torchparity.records import VALUES, Located, Signature, Verdict
from torchparity.records.wire import plain_data, record_from
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case
from torchparity.repro.folders import remove_leftovers
from torchparity.workers.desk import Desk, Reply
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

# What is handed over where the user ends it first: the case is there, its script was not run.
NOT_RUN = Delivered(text="", plain=False, output="", reproduced=(0, 0))
# A search that dies is begun again so often; it has its own limit of time besides.
DEATHS = 40
SEARCH_SECONDS = 7 * 24 * 3600.0
# So long a search may take to write down what it has when it is told to stop.
STOP_SECONDS = 30.0

# Judges the bundle in a folder, under limits.
Judge = Callable[[Path, Limits], Future[Outcome]]


class Where(Protocol):
    """Tells which operation introduces the error, as somebody else has found it; None where nobody has."""

    def __call__(self, *, wait: bool) -> Located | None:
        """Return what is found, now or when it is."""


def start_minify(
    case: Case,
    job: Job,
    pool: Pool,
    *,
    out: Path | None,
    budget: Budget,
    width: int,
    listen: Callable[[Asked], None] | None,
    verdict: Verdict | None = None,
    found: Callable[[Path], None] | None = None,
    where: Where | None = None,
    judge: Judge | None = None,
) -> Minified:
    """Make a case small in a folder of its own; `verdict` is what is known of it already.

    `found` hears of a small case as soon as one is there: its bundle, which stands as it is until `found` returns. It
    may still get plainer. `where` hears of somebody else who looks for the operation that introduces the error.
    `judge` answers questions in the place of the pool.
    """
    with folder_for(out) as folder:
        if (folder / NAME).exists() and (folder / NAME).stat().st_size:
            raise UsageError(
                f"{folder} holds a minification already", hint=f"go on with `--resume {folder}`, or name another folder"
            )
        write_bundle(case, folder / START)
        known = verdict is not None or case.signature is not None
        job = replace(job, free=max(1, width - (not known)))
        log = Log(folder / NAME)
        log.hold()
        log.write("start", case=case.digest, **job.facts())
        pursuit = Pursuit(
            case, job, folder, log, pool, budget=budget, width=width, listen=listen, found=found, where=where,
            judge=judge,
        )  # fmt: skip
        try:
            return pursuit.run(answer_of(verdict) if verdict is not None else None)
        except ParityError:
            if not (folder / FOUND).exists():  # Nothing was found, so nothing is left behind.
                for name in (START, QUERIES):
                    shutil.rmtree(folder / name, ignore_errors=True)
                for name in (NAME, TRYING):
                    (folder / name).unlink(missing_ok=True)
            raise
        finally:
            log.let_go()


def continue_minify(
    folder: Path,
    pool: Pool,
    *,
    budget: Budget,
    width: int,
    listen: Callable[[Asked], None] | None,
    judge: Judge | None = None,
) -> Minified:
    """Go on where a minification was stopped: what the log answers is not asked again."""
    log = resumed(folder)
    log.hold()
    (folder / TRYING).unlink(missing_ok=True)
    remove_leftovers(folder, (START, FOUND, PASSING))
    shutil.rmtree(folder / QUERIES, ignore_errors=True)
    case = read_bundle(folder / START)
    job = Job.from_facts(log.header)
    try:
        pursuit = Pursuit(case, job, folder, log, pool, budget=budget, width=width, listen=listen, judge=judge)
        return pursuit.run(None)
    finally:
        log.let_go()


class Pursuit:
    """One minification as its caller sees it: answers the search's questions, begins it again, verifies the end."""

    def __init__(
        self,
        case: Case,
        job: Job,
        folder: Path,
        log: Log,
        pool: Pool,
        *,
        budget: Budget,
        width: int,
        listen: Callable[[Asked], None] | None,
        found: Callable[[Path], None] | None = None,
        where: Where | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.found, self.where = found, where
        self.judge = judge or (lambda path, limits: pool.submit(BUNDLE_JOB, {"folder": str(path)}, limits=limits))
        self.closed = self.interrupted = False
        self.broken: BaseException | None = None
        self.case, self.job, self.folder, self.log, self.pool = case, job, folder, log, pool
        self.budget, self.width, self.listen = budget, width, listen
        self.began = time.monotonic()
        self.pending: dict[str, Future[Answer]] = {}
        self.commands = ThreadPoolExecutor(max_workers=width)
        self.rehearsal = Rehearsal(pool.probes)

    def run(self, known: Answer | None) -> Minified:
        """Search, verify, and search again where it turns out that another failure was followed than the case's."""
        try:
            with Desk(self.answer) as desk:
                self.desk = desk
                found = self.searched(desk, known)
                result = self.handed_over(found)
                if found["complete"] and not self.interrupted and self.astray(found["believed"]):
                    found = self.searched(desk, None)
                    result = self.handed_over(found)
        finally:
            self.closed = True  # What is answered from now on is nobody's answer.
            self.commands.shutdown(wait=False, cancel_futures=True)
            self.rehearsal.end()
        self.log.write("ended", complete=found["complete"], reproduced=list(result.reproduced))
        shutil.rmtree(self.folder / QUERIES, ignore_errors=True)
        (self.folder / TRYING).unlink(missing_ok=True)
        seconds = time.monotonic() - self.began
        return replace(result, complete=found["complete"], seconds=seconds, log=tuple(self.log.entries()))

    # --- the search ------------------------------------------------------------------------------------

    def searched(self, desk: Desk, known: Answer | None) -> dict[str, Any]:
        """Have a worker search; where it dies at something that it tried, note that, and begin again."""
        for _ in range(DEATHS):
            outcome = self.asked(desk, known)
            if outcome.ending is Ending.RETURNED:
                return self.understood(outcome.value)
            fatal = fatal_key(self.folder)
            if not fatal:
                raise ResourceError(
                    f"the search for a smaller case of {self.case.name} {describe(outcome)}",
                    hint=f"what was found is in {self.folder}; please report this with its log",
                )
            self.log.write("fatal", key=fatal, how=describe(outcome))
            self.log.fatal.add(fatal)
        raise ResourceError(f"the search died {DEATHS} times", hint=f"what was found is in {self.folder}")

    def asked(self, desk: Desk, known: Answer | None) -> Outcome:
        """Run one search to its end; Ctrl-C lets it write down what it has."""
        spent = time.monotonic() - self.began
        seconds = None if self.budget.seconds is None else max(0.0, self.budget.seconds - spent)
        payload = {
            "folder": str(self.folder.resolve()),
            "desk": desk.address,
            "seconds": self.job.limits.seconds,
            "width": self.width,
            "free": self.job.free,
            "known": plain_data(known),
            "looks_inside": self.job.check is None,
            "hinted": self.where is not None,
            "told_early": self.found is not None,
            "rehearses": self.width > 1 and self.job.check is None,
            "budget_seconds": seconds,
            "budget_queries": None if self.budget.queries is None else max(0, self.budget.queries - len(self.pending)),
        }
        running = self.pool.submit(SEARCH_JOB, payload, limits=Limits(seconds=SEARCH_SECONDS), aside=True)
        try:
            return running.result()
        except KeyboardInterrupt:
            self.interrupted = True
            desk.stop()
            try:
                return running.result(timeout=STOP_SECONDS)
            except TimeoutError:
                raise KeyboardInterrupt from None

    def understood(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a search found, or raise what it ended with."""
        if isinstance(self.broken, ParityError):
            raise self.broken
        if self.broken is not None:
            raise ResourceError(
                f"an answer could not be kept: {self.broken}", hint="make room, and go on with --resume"
            )
        if "error" in found:
            raise error_from(found["error"])
        if "spent" in found:
            raise BudgetSpent
        if "signature" not in found:
            raise KeyboardInterrupt
        return dict(found)

    def answer(self, question: Mapping[str, Any], reply: Reply) -> None:
        """Judge a bundle for the search, and write the answer down before anybody hears it."""
        if "where" in question:
            self.commands.submit(lambda: reply(self.hint(wait=question["where"])))
            return
        if "judge" not in question:
            self.hear(question)
            reply({})
            return
        key, path = question["key"], Path(question["judge"])
        self.pending[key] = done = Future[Answer]()

        def heard(find_out: Callable[[], Answer]) -> None:
            try:
                answer = find_out()
                if self.closed:
                    answer = Answer()
                else:
                    self.log.write("answered", query=question["query"], key=key, answer=plain_data(answer))
                    self.log.answers[key] = answer
            except BaseException as error:  # noqa: BLE001 - a full disk for instance; the search is told to stop
                self.broken, answer = error, Answer()
                self.desk.stop()
            done.set_result(answer)
            reply(plain_data(answer))

        if self.job.check is not None:
            command = self.job.check
            self.commands.submit(heard, lambda: run_check(command, path, self.job.limits))
            return
        backend = self.case.recipe.backend_name()
        asked = self.judge(path, self.job.limits)
        asked.add_done_callback(lambda future: heard(lambda: judged(future.result(), self.case.name, backend)))

    def hear(self, told: Mapping[str, Any]) -> None:
        """Take what the search tells without wanting an answer."""
        if "small" in told:
            self.tell_early()
        elif "script" in told:
            self.rehearsal.begin(told["script"])
        elif self.listen is not None:
            self.listen(Asked(**told["asked"]))

    def tell_early(self) -> None:
        """Show the first small case to whoever wants to know of it; the search waits meanwhile."""
        if self.found is not None:
            found, self.found = self.found, None
            found(self.folder / FOUND)

    def hint(self, *, wait: bool) -> dict[str, Any]:
        """Return where the error is introduced, as somebody else has found it; nothing where nobody has."""
        located = self.where(wait=wait) if self.where is not None else None
        if located is None or located.culprit is None:
            return {}
        introduced = located.how == "introduced"
        found = located.culprit
        return {"place": found.place, "name": found.name, "kind": located.kind, "introduced": introduced}

    def astray(self, key: str | None) -> bool:
        """Wait for the whole case; tell whether its failure is another one than what was believed meanwhile."""
        if key is None:
            return False
        answer = self.log.answers.get(key) or self.pending[key].result()
        if not answer.signatures:
            raise NothingFails(
                f"{self.case.name} does not fail here: {answer.word}",
                hint="`torchparity run` shows the verdict; there is nothing to make smaller",
                unknown=not answer.same,
            )
        return answer.signatures[0].kind not in VALUES

    # --- the end ---------------------------------------------------------------------------------------

    def handed_over(self, found: Mapping[str, Any]) -> Minified:
        """Verify the script of what was found; return all that there is to hand over."""
        small = read_bundle(self.folder / FOUND)
        if not found["interrupted"]:
            self.tell_early()
        signature = record_from(Signature, found["signature"])
        if found["interrupted"] or self.interrupted:
            delivered = NOT_RUN
        elif self.job.check is not None:
            answers = [run_check(self.job.check, self.folder / FOUND, self.job.limits) for _ in range(VERIFICATIONS)]
            again = sum(signature in answer.signatures for answer in answers)
            delivered = Delivered(text=write_script(small), plain=False, output="", reproduced=(again, VERIFICATIONS))
        else:
            try:
                delivered = deliver(
                    small, self.folder, signature, found["scripts"], probes=self.pool.probes, before=self.rehearsal.of
                )
            except KeyboardInterrupt:
                self.interrupted = True
                delivered = NOT_RUN
        passing, others = self.folder / PASSING, self.folder / "others"
        return Minified(
            case=small,
            folder=self.folder,
            reproduced=delivered.reproduced,
            queries=found["queries"],
            unanswered=found["unanswered"],
            script=delivered.text,
            script_output=delivered.output,
            script_is_plain=delivered.plain,
            title=delivered.text.split("\n", 1)[0].strip('"') if delivered.plain else "",
            passing=read_bundle(passing) if passing.is_dir() else None,
            others={path.name: read_bundle(path) for path in sorted(others.glob("[!.]*"))},
            started_from={
                "name": self.case.name,
                "operations": self.case.compute_nodes,
                "inputs": len(self.case.inputs),
            },
        )


def judged(outcome: Outcome, subject: str, backend: str) -> Answer:
    """Return what a worker's answer says about a part; an error of ours is no answer."""
    try:
        return answer_of(verdict_of(outcome, subject=subject, backend=backend))
    except ParityError:
        return Answer()


@contextlib.contextmanager
def folder_for(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder to write to; one that goes away again where none was named."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            yield Path(name)
        return
    folder = Path(out)
    # A kill right at the beginning leaves the first case, whole or in part.
    strange = folder.is_file() or any(
        entry.name not in (START, NAME) and not entry.name.startswith(f".{START}.") for entry in folder.glob("*")
    )
    if strange and not (folder / NAME).exists():
        raise UsageError(f"{folder} is not empty", hint="name another folder; this one would be written over")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
