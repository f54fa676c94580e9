"""What a hunt for bugs of the compiler has found so far: all that its page and its JSON lines are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torchparity.records.verdict import Status


@dataclass(frozen=True, kw_only=True)
class HuntReason:
    """Why something was thrown away, or got no answer: in words, how often, and the first seeds that met it."""

    text: str
    count: int
    meaning: str = ""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HuntBucket:
    """What came to an end in one span of time, which begins so many minutes after the hunt did."""

    minute: int
    programs: int = 0
    finds: int = 0
    bugs: int = 0


@dataclass(frozen=True, kw_only=True)
class HuntForm:
    """One form of a line: its table, how many lines were drawn from it, in how many programs, finds among them."""

    table: str
    name: str
    lines: int = 0
    programs: int = 0
    finds: int = 0


@dataclass(frozen=True, kw_only=True)
class HuntVariant:
    """One way to compile: how many programs were compiled so, what came out, and the median of their seconds."""

    options: Mapping[str, Any]
    programs: int
    finds: int = 0
    unknown: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HuntFind:
    """A program that differs: how it was compiled, what was said of it, what became of it, and of which bug it is."""

    seed: int
    kind: str
    severity: str
    state: str
    bug: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    small: str = ""
    program: str = ""
    questions: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class HuntBug:
    """One root cause: where it lies, what cures it, what shows it, and how many finds are of it.

    `verified` finds were made small and traced to it; `likely` ones look like it. `known` is its number upstream,
    `since` says which releases have it, `files` are paths below the hunt's folder, `minute` is when it was found.
    """

    name: str
    kind: str
    stage: str
    severity: str
    title: str = ""
    part: str = ""
    switch: Mapping[str, Any] = field(default_factory=dict)
    known: str = ""
    known_title: str = ""
    since: str = ""
    verified: int = 0
    likely: int = 0
    seeds: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    program: str = ""
    script: str = ""
    issue: str = ""
    files: tuple[str, ...] = ()
    minute: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HuntSummary:
    """A whole hunt. `minutes` are those in which it went on, without the pauses between a stop and a resumption.

    `drawing` are the minutes until the last program; after it finds were settled. `forms` has those that were never
    drawn too. `errors` are failures of the checker itself: there should be none.
    """

    torch: str
    began: str
    ended: str = ""
    seed: int = 0
    minutes: float = 0.0
    drawing: float = 0.0
    statuses: Mapping[str, int] = field(default_factory=dict)
    bucket_minutes: int = 1
    buckets: tuple[HuntBucket, ...] = ()
    forms: tuple[HuntForm, ...] = ()
    variants: tuple[HuntVariant, ...] = ()
    left_out: tuple[HuntReason, ...] = ()
    bugs: tuple[HuntBug, ...] = ()
    finds: tuple[HuntFind, ...] = ()
    unknown: tuple[HuntReason, ...] = ()
    errors: tuple[HuntReason, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a HuntSummary has no truth value: look at its `bugs`")

    @property
    def programs(self) -> int:
        """How many programs were judged."""
        return sum(self.statuses.values())

    @property
    def differing(self) -> int:
        """How many of them differ: each is a find."""
        return self.statuses.get(Status.DIFFERS.value, 0)

    @property
    def rate(self) -> float:
        """Programs a minute, as long as programs were drawn."""
        return self.programs / self.drawing if self.drawing else 0.0

    @property
    def new(self) -> int:
        """How many bugs are not known upstream."""
        return sum(not bug.known for bug in self.bugs)
