"""A program made small: edits are asked about until none of them helps. One gate replaces the current program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchparity.programs.edits import EDITS, Edit, parsed, printed, size

# Asked about several texts, it tells of each whether it still fails in the same way.
Question = Callable[[Sequence[str]], Sequence[bool]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much may be asked, how long it may take, and how many texts are asked about at once."""

    questions: int = 600
    seconds: float = 600.0
    together: int = 2


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """The smallest program that was found, how many texts were asked about, and whether nothing was left to try."""

    text: str
    questions: int
    finished: bool


class Gate:
    """Holds the smallest program so far. Nothing else replaces it."""

    def __init__(self, text: str, question: Question, budget: Budget) -> None:
        self.text = printed(parsed(text))
        self.question = question
        self.budget = budget
        self.asked = 0
        self._began = time.monotonic()
        self._seen = {self.text}

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self.asked >= self.budget.questions or time.monotonic() - self._began > self.budget.seconds

    def adopt_first(self, texts: Sequence[str]) -> bool:
        """Ask about some texts and keep the first that still fails; tell whether there was one."""
        self.asked += len(texts)
        for text, fails in zip(texts, self.question(texts), strict=True):
            if fails:
                self.text = text
                return True
        return False

    def worth_asking(self, text: str) -> bool:
        """Tell whether a text is new and smaller than the current one."""
        if text in self._seen or size(text) >= size(self.text):
            return False
        self._seen.add(text)
        return True


def make_small(
    text: str, question: Question, *, budget: Budget | None = None, edits: Sequence[Edit] = EDITS
) -> Smaller:
    """Return the smallest program that edits reach from a failing one, one step at a time.

    After a step that helps, the same edit is tried again from the start; when none helps, it is over.
    """
    gate = Gate(text, question, budget or Budget())
    helped = True
    while helped and not gate.exhausted:
        helped = False
        for edit in edits:
            while not gate.exhausted and _step(gate, edit):
                helped = True
    return Smaller(text=gate.text, questions=gate.asked, finished=not gate.exhausted)


def _step(gate: Gate, edit: Edit) -> bool:
    """Try an edit at every place until one helps."""
    window: list[str] = []
    for text in _texts(gate, edit):
        window.append(text)
        if len(window) >= gate.budget.together:
            if gate.adopt_first(window):
                return True
            window = []
        if gate.exhausted:
            return False
    return bool(window) and gate.adopt_first(window)


def _texts(gate: Gate, edit: Edit) -> Iterator[str]:
    for tree in edit(parsed(gate.text)):
        try:
            text = printed(tree)
            parsed(text)
        except (SyntaxError, ValueError, TypeError, AttributeError):
            continue  # The edit made something that is no Python.
        if gate.worth_asking(text):
            yield text
