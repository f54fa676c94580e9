"""What the caller of a pool gets: how a query ended, and the limits it ran under."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

OUTPUT_BYTES = 64 * 1024


class Ending(enum.Enum):
    """How a query ended. Only RETURNED carries a value."""

    RETURNED = "returned"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    EXITED = "exited"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one query may use: seconds of wall-clock time, and bytes of memory over all of its processes."""

    seconds: float = 300.0
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorFacts:
    """An exception of another process, as text."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answer to one query, whatever the candidate did.

    `value` is the job's return value where it RETURNED. `error` is the exception where it RAISED, and
    the reason where the pool itself has one to give. `phase` is the last one that the job announced,
    and `output` the end of what its processes wrote to stdout and stderr.
    """

    ending: Ending
    value: Any = None
    error: ErrorFacts | None = None
    signal: int | None = None
    exit_code: int | None = None
    phase: str = ""
    seconds: float = 0.0
    output: str = ""
