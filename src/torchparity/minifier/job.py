"""What a minification asks, and how: it stands in the first line of the log, so that whoever goes on asks the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchparity.workers.outcome import Limits

QUERY_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a minification asks, and how; the log remembers it.

    `free` workers looked for the culprit at the start: all, unless one had to ask how the case fails. Who goes on with
    other workers asks the same questions.
    """

    check: str | None = None
    limits: Limits = field(default_factory=lambda: Limits(seconds=QUERY_SECONDS))
    free: int = 1

    def facts(self) -> dict[str, Any]:
        """Return the job as plain data."""
        return {"check": self.check, "seconds": self.limits.seconds, "memory": self.limits.memory, "free": self.free}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Job:
        """Return the job that a log remembers."""
        limits = Limits(seconds=facts["seconds"], memory=facts["memory"])
        return cls(check=facts["check"], limits=limits, free=facts["free"])
