"""What a failure is recognised by. It is pinned at the start of a search, and only the same failure is followed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchparity.records.verdict import Failure, Kind, Status, Verdict

# Kinds of difference that a value has where it is made, and that can be seen by looking at intermediate values.
VALUES = (Kind.VALUE.value, Kind.BIAS.value, Kind.NONFINITE.value, Kind.INTEGER.value)
# A bias is a difference in value that shows only in many elements together.
SAME_KIND = {Kind.BIAS.value: Kind.VALUE.value}
# Which of these ends a process whose memory was destroyed is chance: one today, another tomorrow.
BY_CHANCE = ("SIGSEGV", "SIGABRT", "SIGBUS")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The kind of a failure and, where the compiler raises, the type of the error and the function it comes from.

    `summary` says it to a person, and tells no failure from another.
    """

    kind: str
    error: str = ""
    frame: str = ""
    summary: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Forget by which signal a process died, where that is chance; the summary says it."""
        if self.kind == Kind.CRASHES.value and self.error in BY_CHANCE:
            object.__setattr__(self, "error", "")

    @property
    def text(self) -> str:
        """The signature in one line."""
        return " ".join(part for part in (self.kind, self.error, f"in {self.frame}" if self.frame else "") if part)


def family(kind: str) -> str:
    """Return the kind that a kind counts as."""
    return SAME_KIND.get(kind, kind)


def function_of(frame: str) -> str:
    """Return a frame without the folder and the line number, which another version moves: `lowering.py full`.

    Of a file that is not installed the function alone: a bundle carries a copy of it, under another name.
    """
    found = re.search(r"([^/\\]+):\d+ (\S+)$", frame)
    if found is None:
        return frame
    installed = re.search(r"[/\\](torch|site-packages|dist-packages)[/\\]", frame)
    return f"{found[1]} {found[2]}" if installed else found[2]


def signatures_of(verdict: Verdict) -> tuple[Signature, ...]:
    """Return every way in which a verdict differs, none where it does not.

    A run that fails comes first: what was seen of its leaves before it failed may be another failure. Then the kinds of
    its leaves, the worst first.
    """
    if verdict.status is not Status.DIFFERS:
        return ()
    summary = verdict.reasons[0] if verdict.reasons else ""
    failure, found = verdict.failure, list[Signature]()
    if failure is not None:
        frame = function_of(failure.frame)
        found.append(Signature(kind=verdict.kind, error=failure.type, frame=frame, summary=summary))
    kinds = [family(leaf.kind) for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
    if not kinds and not found:
        kinds = [verdict.kind]
    return (*found, *(Signature(kind=kind, summary=summary) for kind in dict.fromkeys(kinds)))


def signature_of(failure: Failure | None, verdict: Verdict | None) -> Signature | None:
    """Return how a graph failed: as a verdict says, or by what it raised."""
    if verdict is not None:
        return next(iter(signatures_of(verdict)), None)
    if failure is None:
        return None
    summary = f"raises {failure.type}: {failure.message}"
    return Signature(kind=Kind.RAISES.value, error=failure.type, frame=function_of(failure.frame), summary=summary)
