"""A program made small: edits are asked about until none of them helps. One gate replaces the current program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchparity.programs.edits import EDITS, Edit, parsed, printed, size

# Asked about several texts, it tells the place of the first that still fails in the same way, or None.
Question = Callable[[Sequence[str]], int | None]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much may be asked, how long it may take, and how many texts are asked about at once."""

    questions: int = 1000
    seconds: float = 600.0
    together: int = 6


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
        self._size = size(self.text)
        self._seen = {self.text}

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self.asked >= self.budget.questions or time.monotonic() - self._began > self.budget.seconds

    def adopt_first(self, texts: Sequence[str]) -> int | None:
        """Ask about some texts and keep the first that still fails; return its place."""
        place = self.question(texts)
        self.asked += len(texts) if place is None else place + 1
        if place is not None:
            self.text = texts[place]
            self._size = size(self.text)
            self._seen -= set(texts[place + 1 :])  # Nobody answered these.
        return place

    def worth_asking(self, text: str) -> bool:
        """Tell whether a text is new and smaller than the current one."""
        if text in self._seen or size(text) >= self._size:
            return False
        self._seen.add(text)
        return True


def make_small(
    text: str, question: Question, *, budget: Budget | None = None, edits: Sequence[Edit] = EDITS
) -> Smaller:
    """Return the smallest program that edits reach from a failing one, one step at a time.

    An edit goes on where it last helped; it is over when all of them, from the start, help no more.
    """
    gate = Gate(text, question, budget or Budget())
    helped = True
    while helped and not gate.exhausted:
        helped = False
        for edit in edits:
            helped |= _sweep(gate, edit)
    return Smaller(text=gate.text, questions=gate.asked, finished=not gate.exhausted)


def _sweep(gate: Gate, edit: Edit) -> bool:
    """Try an edit at every place, once from the first to the last; tell whether it helped anywhere."""
    helped, begin = False, 0
    while not gate.exhausted:
        window: list[tuple[int, str]] = []
        adopted = None
        for place, text in _texts(gate, edit, begin):
            window.append((place, text))
            if len(window) >= gate.budget.together:
                adopted = gate.adopt_first([text for _, text in window])
                if adopted is not None or gate.exhausted:
                    break
                window = []
        else:
            adopted = gate.adopt_first([text for _, text in window]) if window else None
        if adopted is None:
            return helped
        helped, begin = True, window[adopted][0]
    return helped


def _texts(gate: Gate, edit: Edit, begin: int) -> Iterator[tuple[int, str]]:
    """Yield what an edit makes of the current program from a place on, where that is new and smaller."""
    for place, change in enumerate(edit(parsed(gate.text))):
        if place < begin:
            continue
        try:
            text = printed(change())
            parsed(text)
        except (SyntaxError, ValueError, TypeError, AttributeError):
            continue  # The edit made something that is no Python.
        if gate.worth_asking(text):
            yield place, text
