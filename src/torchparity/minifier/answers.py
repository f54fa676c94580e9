"""What is heard about a part: how it fails, which values are wrong, and a clue for the search."""

from __future__ import annotations

from dataclasses import dataclass

from torchparity.records import Failure, Kind, Signature, Status, Verdict, family, signatures_of

# How much of an error's text is kept to find the operation that it names.
CLUE = 3000


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was heard about a part: every signature it fails with, which values were wrong, and a clue for the search.

    No signatures and `same` means that it passes; no signatures and not `same` that there is no answer.
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
        return "same" if self.same else "no answer"


def answer_of(verdict: Verdict) -> Answer:
    """Return what a verdict says about the failure."""
    if verdict.status is not Status.DIFFERS:
        return Answer(same=verdict.status is Status.SAME, seconds=verdict.seconds)
    differing = [leaf for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
    failure = verdict.failure
    return Answer(
        signatures=signatures_of(verdict),
        wrong=tuple((leaf.path, family(leaf.kind)) for leaf in differing),
        clue=f"{failure.message}\n{clue_in(failure)}" if failure is not None else "",
        repeats=verdict.differs_in or (1, 1),
        tolerance=verdict.threshold * differing[0].allowed if differing else 0.0,
        seconds=verdict.seconds,
    )


def clue_in(failure: Failure) -> str:
    """Return the part of what was printed that names the cause: the end of a traceback, the beginning of a crash."""
    crashed = failure.stage == Kind.CRASHES.value
    return failure.traceback[:CLUE] if crashed else failure.traceback[-CLUE:]
