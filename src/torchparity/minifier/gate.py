"""The only place where the current part is replaced: asks, remembers, counts, and adopts what is smaller."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from torch.fx import GraphModule

from torchparity.graphs.part import Part
from torchparity.graphs.search import Kept, Unanswered, foresee, kept_of
from torchparity.judge.reading import Reading

T = TypeVar("T")
Predicate = Callable[[GraphModule, list[Any]], bool]
# Parts that pass are kept as long as one of them may be the nearest to the smallest that fails.
PASSING = 24
PASSING_NODES = 60


class Asker(Protocol):
    """Answers whether parts fail, several at once; the failure that it knows never changes."""

    width: int
    # Whether the failure shows in inputs afterwards, so that who only writes to them need not be returned.
    silent: bool

    def ask(self, part: Part) -> Future[Reading]:
        """Ask whether a part fails as it should."""

    def adopt(self, part: Part) -> None:
        """Hear of a new smallest part."""

    def likely(self, part: Part) -> None:
        """Hear of a part that will probably be the last."""

    def expect(self, stage: str, left: int) -> None:
        """Hear what is being done, and about how many questions are left."""


class Direct:
    """Asks a predicate, in this process."""

    width = 1
    silent = False

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate

    def ask(self, part: Part) -> Future[Reading]:
        """Call the predicate with copies, which it may change."""
        fresh = part.fresh()
        fails = bool(self.predicate(fresh.graph_module, list(fresh.inputs)))
        return settled(Reading.FAILS if fails else Reading.PASSES)

    def adopt(self, part: Part) -> None:
        """Nobody is told."""

    def likely(self, part: Part) -> None:
        """Nobody is told."""

    def expect(self, stage: str, left: int) -> None:
        """Nobody is told."""


class Gate:
    """Every question goes through here, and a part that fails and is smaller than the best becomes the best."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.best: Part | None = None
        self.queries = 0
        self.unanswered = 0
        self.passing: collections.deque[Part] = collections.deque(maxlen=PASSING)
        self._passed: set[str] = set()
        self._answers: dict[str, Future[Reading]] = {}

    @property
    def current(self) -> Part:
        """The smallest part that fails, once there is one."""
        assert self.best is not None
        return self.best

    def follow(self, asker: Asker) -> None:
        """Ask somebody else from now on, who knows another failure; only as long as nothing has been found."""
        assert self.best is None
        self.asker = asker
        self._answers.clear()

    def annotate(self, part: Part) -> None:
        """Know more of the best part than before; it is the same one, and fails."""
        self._answers[part.key] = self._answers[self.current.key]
        self.best = part

    def fails(self, part: Part) -> bool:
        """Ask whether a part fails, once; adopt it where it does and is smaller than the best so far."""
        reading = self._begin(part).result()
        self.unanswered += reading is Reading.NO_ANSWER
        if reading is Reading.FAILS and (self.best is None or part.size < self.best.size):
            self.best = part
            self.asker.adopt(part)
        if reading is Reading.PASSES and part.key not in self._passed and part.compute_nodes <= PASSING_NODES:
            self._passed.add(part.key)
            self.passing.append(part)
        return reading is Reading.FAILS

    def back_to(self, part: Part) -> None:
        """Take a larger part again, where what was adopted after it did not hold; what was heard is heard anew."""
        self.best = part
        self._answers = {part.key: settled(Reading.FAILS)}
        self._passed.clear()
        self.passing.clear()

    def ahead(self, *parts: Part | None) -> None:
        """Ask what will probably be asked next, where there is a worker for it; nobody waits for the answer."""
        if self.asker.width > 1:
            for part in parts:
                if part is not None:
                    self._begin(part)

    def _begin(self, part: Part) -> Future[Reading]:
        if part.key not in self._answers:
            self.queries += 1
            self._answers[part.key] = self.asker.ask(part)
        return self._answers[part.key]

    def needed(self, candidates: Sequence[T], part_of: Callable[[list[T]], Part | None]) -> list[T]:
        """Return the candidates without which the failure goes, asking ahead where there are workers for it.

        `part_of(kept)` makes the part in which only these candidates stay; None is a part that cannot be. All of
        them together must be known to fail.
        """
        answers: dict[Kept, bool] = {tuple(range(len(candidates))): True}
        parts: dict[Kept, Part | None] = {}
        while True:
            try:
                return [candidates[place] for place in kept_of(len(candidates), answers)]
            except Unanswered:
                upcoming = foresee(len(candidates), answers, self.asker.width)
            for question in upcoming:
                if question not in parts:
                    parts[question] = part_of([candidates[place] for place in question])
                    part = parts[question]
                    if part is not None and question != upcoming[0]:
                        self._begin(part)
            first = parts[upcoming[0]]
            answers[upcoming[0]] = first is not None and self.fails(first)


def settled(reading: Reading) -> Future[Reading]:
    """Return an answer that is there."""
    answer: Future[Reading] = Future()
    answer.set_result(reading)
    return answer
