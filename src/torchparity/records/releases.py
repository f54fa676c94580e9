"""What a script says in each release of torch, and since when it fails."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NoReturn


class ReleaseState(enum.Enum):
    """What a script says in one release. Killed by somebody, too slow, failing in another way: no answer."""

    WORKS = "works"
    FAILS = "fails"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a ReleaseState has no truth value: compare it, as in `state is ReleaseState.FAILS`")


class Course(enum.Enum):
    """How a failure goes over the releases that answered, from the oldest to the newest."""

    BROKEN = "broken"
    FIXED = "fixed"
    ALWAYS = "always"
    NEVER = "never"
    CAME_AND_WENT = "came_and_went"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Course has no truth value: compare it, as in `found.course is Course.BROKEN`")


@dataclass(frozen=True, kw_only=True)
class ReleaseEnvironment:
    """An environment with one release of torch, as it lies in the cache; `options` are those that pip was given."""

    asked: str
    torch: str
    python: str
    folder: str
    options: tuple[str, ...] = ()
    size: int = 0
    made: str = ""

    @property
    def interpreter(self) -> str:
        """The Python that has this torch."""
        return f"{self.folder}/bin/python"


@dataclass(frozen=True, kw_only=True)
class ReleaseAnswer:
    """What a script says in one release, and how its process ended.

    `asked` is a version as it was asked for, or the path of an interpreter; `torch` the version that ran, empty where
    none could be had. `error` names the failure (`AssertionError`, `SIGSEGV`), `why` says it with its message, or says
    why there is no answer; `output` is the end of what was printed.
    """

    asked: str
    state: ReleaseState
    torch: str = ""
    why: str = ""
    hint: str = ""
    error: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    python: str = ""
    output: str = ""

    @property
    def name(self) -> str:
        """The release, as it was asked for where it was asked for by its version."""
        return self.asked if self.asked[:1].isdigit() else self.torch.partition("+")[0] or self.asked


@dataclass(frozen=True, kw_only=True)
class ReleaseChange:
    """Two releases between which a script began to fail, or ceased to.

    `state` is what it says from `after` on. `silent` are those between the two that gave no answer; `skipped` tells
    that there are others between them, which were not asked.
    """

    before: str
    after: str
    state: ReleaseState
    silent: tuple[str, ...] = ()
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class Since:
    """What a script says in every release that was asked, from the oldest to the newest, and where that changes.

    `error` is the failure that is followed: one of another kind is no answer.
    """

    script: str
    answers: tuple[ReleaseAnswer, ...]
    changes: tuple[ReleaseChange, ...] = ()
    error: str = ""
    seconds: float = 0.0

    def __bool__(self) -> NoReturn:
        raise TypeError("a Since has no truth value: look at its `course`, or at its `answers`")

    @property
    def silent(self) -> tuple[str, ...]:
        """The releases that gave no answer."""
        return tuple(answer.name for answer in self.answers if answer.state is ReleaseState.UNKNOWN)

    @property
    def course(self) -> Course:
        """How the failure goes over the releases that answered."""
        if len(self.changes) > 1:
            return Course.CAME_AND_WENT
        if self.changes:
            return Course.BROKEN if self.changes[0].state is ReleaseState.FAILS else Course.FIXED
        told = {answer.state for answer in self.answers} - {ReleaseState.UNKNOWN}
        if not told:
            return Course.UNKNOWN
        return Course.ALWAYS if ReleaseState.FAILS in told else Course.NEVER

    @property
    def exit_code(self) -> int:
        """0 where it works in the newest release that was asked, 1 where it fails there, 125 where nobody knows."""
        newest = self.answers[-1].state if self.answers else ReleaseState.UNKNOWN
        return {ReleaseState.WORKS: 0, ReleaseState.FAILS: 1, ReleaseState.UNKNOWN: 125}[newest]
