"""Asks about parts in workers, and follows the one failure that was pinned at the start."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchparity.errors import CaseError, ParityError, UsageError
from torchparity.execute.cases import Loaded, load_case
from torchparity.graphs.extract import Extractor
from torchparity.graphs.part import Part, Setting, placeholders, with_shapes
from torchparity.minifier.log import Log, answer_to
from torchparity.minifier.signature import VALUES, Answer, Signature
from torchparity.repro.bundle import write_bundle
from torchparity.repro.case import Case, make_case, write_graph
from torchparity.run.state import RandomState

# How many failures of another kind are kept as cases of their own.
OTHERS = 12
# How many times a failure that comes and goes is asked about.
REPEATS = 4

Judge = Callable[[Path], Answer]


class BudgetSpent(Exception):
    """No more questions may be asked."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One query as a listener hears of it: what was asked about, what was heard, and how far it all is."""

    number: int
    compute_nodes: int
    answer: Answer
    best: int
    seconds: float
    left: int
    stage: str

    @property
    def expected_seconds(self) -> float:
        """About how long it will still take."""
        return self.left * self.seconds / max(1, self.number)


Listener = Callable[[Question], None]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long, and how often, may be asked."""

    seconds: float | None = None
    queries: int | None = None


class Chase:
    """Asks about parts of one case, several at once, each in a process of its own; knows the failure it follows."""

    def __init__(
        self,
        case: Case,
        judge: Judge,
        *,
        folder: Path,
        log: Log,
        width: int,
        budget: Budget,
        listen: Listener | None = None,
        looks_inside: bool = False,
        free: int | None = None,
    ) -> None:
        # Whether the judge tells which values are wrong, so that intermediate ones are worth looking at.
        self.looks_inside = looks_inside
        self.case = case
        self.judge = judge
        self.folder = folder
        self.log = log
        self.width = width
        # How many workers look for the culprit at the start.
        self.free = free or width
        self.budget = budget
        self.listen = listen
        # What is followed; `settled` once the whole case has shown it, `expected` what it was seen to do before.
        self.signature: Signature | None = None
        self.settled = False
        self.expected: str | None = None
        self.repeats = (1, 1)
        self.best: Part | None = None
        self.best_answer = Answer()
        self.stage, self.left = "start", 0
        self.queries = self.asked_before = log.asked
        self.began = time.monotonic()
        self._asked: dict[str, Future[Answer]] = {}
        self._executor = ThreadPoolExecutor(max_workers=width)
        self._closed = False

    # --- asking --------------------------------------------------------------------------------------

    def start(self, known: Answer | None = None) -> None:
        """Begin to look at the whole case in a worker, unless what it does is known already."""
        key = key_of(self.whole)
        if known is not None and key not in self.log.answers:
            self.log.write("answered", query=0, key=key, answer=answer_to(known))
            self.log.answers[key] = known
        seen = self.log.answers.get(key)
        recorded = (self.case.signature or {}).get("kind")
        self.expected = seen.signatures[0].kind if seen is not None and seen.signatures else recorded
        if self.expected is None or not self.looks_inside:
            self.inquire(self.whole)

    def settle(self) -> None:
        """Wait for what the whole case does, and pin it."""
        answer = self.inquire(self.whole).result()
        if not answer.signatures:
            raise UsageError(
                f"{self.case.name} does not fail here: {answer.word}",
                hint="`torchparity run` shows the verdict; there is nothing to make smaller",
            )
        self.signature, self.settled = answer.signatures[0], True
        if answer.repeats[0] < answer.repeats[1]:
            answers = [self.inquire(self.whole, attempt=attempt).result() for attempt in range(1, REPEATS)]
            self.repeats = (1 + sum(self.shows(entry) for entry in answers), REPEATS)

    def astray(self) -> bool:
        """Tell whether what was followed before the whole case had answered is another failure than its own."""
        followed = self.signature
        if self.settled or self.expected in VALUES:
            return False
        self.settle()
        assert self.signature is not None
        if self.signature.kind not in VALUES:
            self.best = None
            return True
        self.signature = followed
        return False

    def shows(self, answer: Answer) -> bool:
        """Tell whether an answer is the failure that is followed."""
        return self.signature in answer.signatures

    def ask(self, part: Part) -> Future[bool | None]:
        """Ask whether a part fails as the case does; as often as at the start where that failure comes and goes."""
        wanted, times = self.repeats
        followed = self.signature  # When the answer comes, it may be another one.
        answers: list[Answer] = []
        done: Future[bool | None] = Future()

        def heard(future: Future[Answer]) -> None:
            if future.exception() is not None:
                done.set_exception(future.exception())
                return
            answers.append(future.result())
            failed = sum(followed in answer.signatures for answer in answers)
            if failed >= wanted:
                done.set_result(True)
            elif len(answers) - failed > times - wanted:
                done.set_result(False if any(answer.same for answer in answers) else None)
            else:
                try:
                    again = self.inquire(part, attempt=len(answers))
                except BudgetSpent as spent:
                    done.set_exception(spent)
                else:
                    again.add_done_callback(heard)

        self.inquire(part).add_done_callback(heard)
        return done

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
            case = self.case_of(part)
        except CaseError:
            known.set_result(Answer())
            return known
        self.queries += 1
        number = self.queries
        self.log.write("asked", query=number, key=key, operations=part.compute_nodes, stage=self.stage)
        path = write_bundle(case, self.folder / f"{number:05d}")
        self._asked[key] = self._executor.submit(self._judge, part, key, number, path, self.stage)
        return self._asked[key]

    def _judge(self, part: Part, key: str, number: int, path: Path, stage: str) -> Answer:
        """Wait for an answer in a thread of its own, and write it down before anybody acts on it."""
        try:
            answer = self.judge(path)
        except ParityError:
            answer = Answer()
        if self._closed:
            return Answer()
        self.log.write("answered", query=number, key=key, answer=answer_to(answer))
        self.log.answers[key] = answer
        self._keep_others(answer, path)
        shutil.rmtree(path, ignore_errors=True)
        if self.listen is not None:
            self.listen(
                Question(
                    number=number - self.asked_before,
                    compute_nodes=part.compute_nodes,
                    answer=answer,
                    best=self.best.compute_nodes if self.best is not None else self.case.compute_nodes,
                    seconds=time.monotonic() - self.began,
                    left=self.left,
                    stage=stage,
                )
            )
        return answer

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
        if not self.settled or self.shows(answer):
            return
        for signature in answer.signatures:
            mark = hashlib.sha256(signature.text.encode()).hexdigest()[:6]
            kept = self.others / f"{signature.kind}_{mark}"
            if not kept.exists() and len(list(self.others.glob("*"))) < OTHERS:
                self.others.mkdir(exist_ok=True)
                shutil.copytree(path, kept)

    @property
    def others(self) -> Path:
        """The folder of the failures that are not followed."""
        return self.folder.parent / "others"

    def expect(self, stage: str, left: int) -> None:
        """Hear what is being done, and about how many questions are left."""
        self.stage, self.left = stage, left

    def adopt(self, part: Part) -> None:
        """Keep the smallest part so far as a whole bundle."""
        self.best = part
        self.best_answer = self.log.answers.get(key_of(part), Answer())
        self.log.write("adopted", operations=part.compute_nodes, key=key_of(part))
        write_bundle(self.case_of(part), self.folder.parent / "case")

    def close(self) -> None:
        """Ask no more, and believe no answer that comes after this."""
        self._closed = True

    def end(self, *, wait: bool = True) -> None:
        """Let the threads go; those that ask somebody else's pool end with its answers, which nobody believes."""
        self._executor.shutdown(wait=wait, cancel_futures=True)

    # --- cases ---------------------------------------------------------------------------------------

    @functools.cached_property
    def loaded(self) -> Loaded:
        """The case, its script run."""
        return load_case(self.case)

    @functools.cached_property
    def _made(self) -> tuple[Any, list[Any], dict[str, torch.Tensor]]:
        return self.loaded.make()

    @functools.cached_property
    def graph_module(self) -> Any:
        """The graph of the case, its inputs without the annotations that the printed source gave them."""
        graph_module = self.loaded.graph_of(self._made[0])
        for node in placeholders(graph_module):
            node.type = None
        graph_module.recompile()
        return graph_module

    @functools.cached_property
    def whole(self) -> Part:
        """The case as it is."""
        return self.extractor.whole()

    @property
    def inputs(self) -> list[Any]:
        """The inputs of the case."""
        return self._made[1]

    @property
    def setting(self) -> Setting:
        """How the case is compiled."""
        case = self.case
        recipe = replace(case.recipe, dynamic=None) if not case.symbols else case.recipe
        return Setting(recipe=recipe, backward=case.backward, autocast=case.autocast)

    @functools.cached_property
    def extractor(self) -> Extractor:
        """What makes parts of the case's graph."""
        backward = self.case.backward
        setting = self.setting
        return Extractor(self.graph_module, self.inputs, gradients=backward, setting=setting, around=self.conditions())

    @contextlib.contextmanager
    def conditions(self) -> Iterator[None]:
        """Hold the random numbers and the autocast that the case was captured under."""
        before = RandomState()
        before.with_torch(self._made[2]).restore()
        autocast = self.case.autocast
        try:
            if autocast is None:
                yield
                return
            with torch.autocast(autocast[0], dtype=getattr(torch, autocast[1])):
                yield
        finally:
            before.restore()

    def case_of(self, part: Part) -> Case:
        """Return the case of a part."""
        case, setting = self.case, part.setting or self.setting
        fresh = part.fresh()
        inputs = list(fresh.inputs)
        differentiable = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        made = make_case(
            write_graph(with_shapes(fresh.graph_module, inputs), inputs),
            inputs,
            name=case.name,
            level=case.level,
            direction=case.direction,
            recipe=setting.recipe,
            backward=setting.backward and differentiable,
            random=self._made[2],
            autocast=setting.autocast,
            origin={"smaller than": case.digest},
            environment=case.environment,
        )
        # A backend that came with a bundle is known by its file alone: this process need not have imported it.
        modules = [line.removeprefix("import ") for line in setting.recipe.backend_source()[0]]
        carried = any(f"{module}.py" in case.files for module in modules)
        return replace(made, files={**case.files, **made.files}) if carried else made


def key_of(part: Part, attempt: int = 0) -> str:
    """Return what a question is known by in the log."""
    return hashlib.sha256(f"{part.key}\n{attempt}".encode()).hexdigest()
