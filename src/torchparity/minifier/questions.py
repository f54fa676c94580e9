"""Asks about parts: every question is a bundle, logged before and after, within a budget; none is asked twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from torchparity.errors import CaseError, NothingFails
from torchparity.graphs.part import Part
from torchparity.judge.reading import Reading
from torchparity.judge.script import write_bundle
from torchparity.minifier.answers import Answer
from torchparity.minifier.log import Log
from torchparity.minifier.workshop import Workshop
from torchparity.records import Kind, Signature
from torchparity.records.wire import plain_data

# How many failures of another kind are kept as cases of their own.
OTHERS = 12
# How many times a failure that comes and goes is asked about.
REPEATS = 4
# What inductor is asked for in the place of, and writes no code: where it fails alike, a question takes a third.
WHOLE_BACKEND, LESSER_BACKEND = "inductor", "aot_eager_decomp_partition"

Judge = Callable[[Path], Future[Answer]]


class BudgetSpent(Exception):
    """No more questions may be asked."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One query as a listener hears of it: what was asked about, what was heard, and how far it all is."""

    number: int
    compute_nodes: int
    word: str
    best: int
    seconds: float
    left: int
    stage: str

    @property
    def expected_seconds(self) -> float:
        """About how long it will still take."""
        return self.left * self.seconds / max(1, self.number)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long, and how often, may be asked."""

    seconds: float | None = None
    queries: int | None = None


class Questions:
    """Asks about parts of one case, several at once, each in a process of its own."""

    def __init__(
        self,
        workshop: Workshop,
        judge: Judge,
        *,
        folder: Path,
        log: Log,
        width: int,
        budget: Budget,
        listen: Callable[[Asked], None] | None = None,
    ) -> None:
        self.workshop, self.judge, self.folder, self.log = workshop, judge, folder, log
        self.width, self.budget, self.listen = width, budget, listen
        self.stage, self.left = "start", 0
        self.best: Part | None = None
        # Who hears of every new smallest part, once its bundle is there.
        self.adopted: Callable[[Part], None] | None = None
        # Who hears of a part that will probably be the last.
        self.likely: Callable[[Part], None] | None = None
        # A backend that does less and fails alike: parts are asked about with it, the last one with the whole again.
        self.lesser, self.seeks_lesser = "", True
        # The smallest part that was seen to fail with the whole.
        self.sure: Part | None = None
        # The failure that is followed, from the moment that a part has shown it: it never changes after that.
        self.pinned: Signature | None = None
        self.queries = self.asked_before = log.asked
        self.began = time.monotonic()
        # What each question is known by, by its number.
        self.keys: dict[int, str] = {}
        self._asked: dict[str, Future[Answer]] = {}

    def inquire(self, part: Part, *, attempt: int = 0) -> Future[Answer]:
        """Ask once, or find in the log what was answered when this was asked before."""
        key = key_of(part, attempt)
        known: Future[Answer] = Future()
        if key in self.log.answers:
            known.set_result(self.log.answers[key])
            return known
        if key in self._asked:
            return self._asked[key]
        self._check_budget()
        try:
            case = self.workshop.case_of(part)
        except CaseError:
            if part is self.workshop.whole:
                raise
            known.set_result(Answer())
            return known
        self.queries += 1
        number, stage = self.queries, self.stage
        self.keys[number] = key
        self.log.write("asked", query=number, key=key, operations=part.compute_nodes, stage=stage)
        path = write_bundle(case, self.folder / f"{number:05d}")
        self._asked[key] = done = Future[Answer]()

        def heard(future: Future[Answer]) -> None:
            try:
                answer = future.result()
                self._hear(answer, part, key, number, path, stage)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the answer raises it
                done.set_exception(error)
            else:
                done.set_result(answer)

        self.judge(path).add_done_callback(heard)
        return done

    def lessened(self, part: Part, backend: str = "") -> Part:
        """Return a part as it is asked about."""
        backend = backend or self.lesser
        if not backend:
            return part
        setting = part.setting or self.workshop.setting
        return replace(part, setting=replace(setting, backend=backend))

    def seek_lesser(self, part: Part, signature: Signature) -> None:
        """Find out meanwhile whether less of the compiler shows the same; nobody waits for it."""
        setting = part.setting or self.workshop.setting
        if setting.backend != WHOLE_BACKEND or setting.mode is not None or setting.options:
            return

        def heard(future: Future[Answer]) -> None:
            found = future.exception() is None and signature in future.result().signatures
            if found and self.seeks_lesser:
                self.lesser = LESSER_BACKEND

        with contextlib.suppress(BudgetSpent):
            self.inquire(self.lessened(part, LESSER_BACKEND)).add_done_callback(heard)

    def _hear(self, answer: Answer, part: Part, key: str, number: int, path: Path, stage: str) -> None:
        """Take an answer, which whoever gave it has written down before."""
        self.log.answers[key] = answer
        self._keep_others(answer, path)
        shutil.rmtree(path, ignore_errors=True)
        if self.listen is not None:
            best = self.best.compute_nodes if self.best is not None else self.workshop.case.compute_nodes
            self.listen(
                Asked(
                    number=number - self.asked_before,
                    compute_nodes=part.compute_nodes,
                    word=answer.word,
                    best=best,
                    seconds=time.monotonic() - self.began,
                    left=self.left,
                    stage=stage,
                )
            )

    def _check_budget(self) -> None:
        spent = time.monotonic() - self.began
        if self.best is None:
            return
        if self.budget.seconds is not None and spent > self.budget.seconds:
            raise BudgetSpent
        if self.budget.queries is not None and self.queries - self.asked_before >= self.budget.queries:
            raise BudgetSpent

    def _keep_others(self, answer: Answer, path: Path) -> None:
        """Keep the first part that fails in another way as a case of its own."""
        if self.pinned is None or self.pinned in answer.signatures:
            return
        for signature in answer.signatures:
            mark = hashlib.sha256(signature.text.encode()).hexdigest()[:6]
            self.others.mkdir(exist_ok=True)
            kept, partial = self.others / f"{signature.kind}_{mark}", self.others / f".{mark}.{path.name}"
            if len([entry for entry in self.others.iterdir() if not entry.name.startswith(".")]) < OTHERS:
                shutil.copytree(path, partial)
                try:
                    os.rename(partial, kept)  # noqa: PTH104 - refuses where one is there already, from another thread too
                except OSError:
                    shutil.rmtree(partial, ignore_errors=True)

    @property
    def others(self) -> Path:
        """The folder of the failures that are not followed."""
        return self.folder.parent / "others"


class Following:
    """Asks whether parts fail in one way: the way is pinned, here and for good."""

    def __init__(self, questions: Questions, signature: Signature, repeats: tuple[int, int] = (1, 1)) -> None:
        self.questions, self.signature, self.repeats = questions, signature, repeats
        self.width = questions.width
        self.silent = signature.kind == Kind.MUTATION.value

    def ask(self, part: Part) -> Future[Reading]:
        """Ask whether a part fails so; as often as at the start where that failure comes and goes."""
        part = self.questions.lessened(part)
        wanted, times = self.repeats
        answers: list[Answer] = []
        done: Future[Reading] = Future()

        def heard(future: Future[Answer]) -> None:
            if future.exception() is not None:
                done.set_exception(future.exception())
                return
            answers.append(future.result())
            failed = sum(self.signature in answer.signatures for answer in answers)
            if failed >= wanted:
                done.set_result(Reading.FAILS)
            elif len(answers) - failed > times - wanted:
                otherwise = Reading.OTHERWISE if any(it.signatures for it in answers) else Reading.NO_ANSWER
                done.set_result(Reading.PASSES if any(it.same for it in answers) else otherwise)
            else:
                try:
                    again = self.questions.inquire(part, attempt=len(answers))
                except BudgetSpent as spent:
                    done.set_exception(spent)
                else:
                    again.add_done_callback(heard)

        self.questions.inquire(part).add_done_callback(heard)
        return done

    def adopt(self, part: Part) -> None:
        """Keep the smallest part so far as a whole bundle."""
        questions = self.questions
        first = questions.best is None
        questions.sure = questions.sure if questions.lesser else part
        questions.pinned, questions.best = self.signature, part
        if first and questions.width > 1 and self.repeats == (1, 1):
            questions.seek_lesser(part, self.signature)
        questions.log.write("adopted", operations=part.compute_nodes, key=key_of(questions.lessened(part)))
        write_bundle(questions.workshop.case_of(part), questions.folder.parent / "case")
        if questions.adopted is not None:
            questions.adopted(part)

    def likely(self, part: Part) -> None:
        """Hear of a part that will probably be the last."""
        if self.questions.likely is not None:
            self.questions.likely(part)

    def expect(self, stage: str, left: int) -> None:
        """Hear what is being done, and about how many questions are left."""
        self.questions.stage, self.questions.left = stage, left


class Whole:
    """What the whole case does: known, expected, or still to be heard."""

    def __init__(self, questions: Questions, *, known: Answer | None, looks_inside: bool) -> None:
        self.questions = questions
        # Whether the judge tells which values are wrong, so that intermediate ones are worth looking at.
        self.looks_inside = looks_inside
        # Whether its own failure is what is followed.
        self.settled = False
        key = key_of(questions.workshop.whole)
        if known is not None and key not in questions.log.answers:
            questions.log.write("answered", query=0, key=key, answer=plain_data(known))
            questions.log.answers[key] = known
        seen = questions.log.answers.get(key)
        recorded = questions.workshop.case.signature
        self.expected = seen.signatures[0].kind if seen is not None and seen.signatures else None
        if self.expected is None and recorded is not None:
            self.expected = recorded.kind
        if self.expected is None or not looks_inside:
            self.begin()

    def begin(self) -> Future[Answer]:
        """Ask about the whole case, once."""
        return self.questions.inquire(self.questions.workshop.whole)

    def answer(self) -> Answer:
        """Wait for what it does; refuse one that does not fail."""
        answer = self.begin().result()
        if not answer.signatures:
            raise NothingFails(
                f"{self.questions.workshop.case.name} does not fail here: {answer.word}",
                hint="`torchparity run` shows the verdict; there is nothing to make smaller",
                unknown=not answer.same,
            )
        return answer

    def follower(self) -> Following:
        """Return who follows the failure of the whole case, and how often it shows."""
        answer = self.answer()
        self.settled = True
        signature = answer.signatures[0]
        if answer.repeats[0] == answer.repeats[1]:
            return Following(self.questions, signature)
        whole = self.questions.workshop.whole
        again = [self.questions.inquire(whole, attempt=attempt).result() for attempt in range(1, REPEATS)]
        shown = 1 + sum(signature in entry.signatures for entry in again)
        return Following(self.questions, signature, (shown, REPEATS))


def key_of(part: Part, attempt: int = 0) -> str:
    """Return what a question is known by in the log."""
    return hashlib.sha256(f"{part.key}\n{attempt}".encode()).hexdigest()
