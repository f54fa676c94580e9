"""What a failure is recognised by. It is pinned at the start, and only the same failure is followed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchparity.records import Kind, Status, Verdict

# Kinds of difference that a value has where it is made, and that can be seen by looking at intermediate values.
VALUES = (Kind.VALUE.value, Kind.BIAS.value, Kind.NONFINITE.value, Kind.INTEGER.value)
# A bias is a difference in value that shows only in many elements together.
SAME_KIND = {Kind.BIAS.value: Kind.VALUE.value}
# How much of an error's text is kept to find the operation that it names.
CLUE = 3000


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The kind of a failure and, where the compiler raises, the type of the error and the function it comes from."""

    kind: str
    error: str = ""
    frame: str = ""

    @property
    def text(self) -> str:
        """The signature in one line."""
        return " ".join(part for part in (self.kind, self.error, f"in {self.frame}" if self.frame else "") if part)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was heard about a part: every signature it fails with, which values were wrong, and a clue for the search.

    No signatures and `same` means that it passes; no signatures and not `same` that nobody knows.
    """

    signatures: tuple[Signature, ...] = ()
    same: bool = False
    wrong: tuple[tuple[str, str], ...] = ()
    clue: str = ""
    repeats: tuple[int, int] = (1, 1)
    # How far apart two right results may lie, where the failure is one of values.
    tolerance: float = 0.0
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """The answer in a word or two."""
        if self.signatures:
            return self.signatures[0].text
        return "same" if self.same else "unknown"


def answer_of(verdict: Verdict) -> Answer:
    """Return what a verdict says about the failure."""
    if verdict.status is not Status.DIFFERS:
        return Answer(same=verdict.status is Status.SAME, seconds=verdict.seconds)
    differing = [leaf for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
    wrong = tuple((leaf.path, family(leaf.kind)) for leaf in differing)
    kinds = dict.fromkeys(kind for _, kind in wrong) or {verdict.kind: None}
    failure = verdict.failure
    facts = {"error": failure.type, "frame": function_of(failure.frame)} if failure is not None else {}
    return Answer(
        signatures=tuple(Signature(kind=kind, **facts) for kind in kinds),
        wrong=wrong,
        clue=f"{failure.message}\n{failure.traceback[-CLUE:]}" if failure is not None else "",
        repeats=verdict.differs_in or (1, 1),
        tolerance=next(
            (verdict.threshold * leaf.allowed for leaf in verdict.leaves if leaf.status is Status.DIFFERS), 0.0
        ),
        seconds=verdict.seconds,
    )


def family(kind: str) -> str:
    """Return the kind that a kind counts as."""
    return SAME_KIND.get(kind, kind)


def function_of(frame: str) -> str:
    """Return a frame without the folder and the line number, which another version moves: `lowering.py full`."""
    found = re.search(r"([^/\\]+):\d+ (\S+)$", frame)
    return f"{found[1]} {found[2]}" if found else frame
