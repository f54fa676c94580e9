"""What a sweep has found, as records for pages and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SweepCell", "SweepChange", "SweepHistory", "SweepSummary"]


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One cell: what was checked (a row and a column of the matrix), in which environment, and how it came out.

    `baseline` is new, changed, expired, known, or nothing where it does not fail. `flaky` tells that repetitions came
    out differently. `given` are the options as data, `history` the statuses of earlier sweeps, the oldest first; `file`
    and `line` are the user's.
    """

    id: int
    title: str
    target: str
    options: str
    given: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: int = 0
    repeat: int = 0
    status: str = ""
    kind: str = ""
    severity: str = ""
    reason: str = ""
    seconds: float = 0.0
    peak: int = 0
    labels: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    fingerprint: str = ""
    baseline: str = ""
    flaky: bool = False
    history: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    finding: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SweepChange:
    """A cell in two environments: same, new failure, cured, other failure; and how much slower the second was."""

    title: str
    options: str
    word: str
    before: str
    after: str
    slower: float
    reason: str = ""
    since: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepHistory:
    """An earlier sweep of the folder: when, and how many cells came out how."""

    began: str
    statuses: Mapping[str, int]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """A sweep: its cells, its environments, what changed between them, what the baseline says, what came before."""

    suite: str
    began: str
    ended: str
    cells: tuple[SweepCell, ...]
    environments: tuple[Mapping[str, Any], ...]
    statuses: Mapping[str, int]
    changes: tuple[SweepChange, ...] = ()
    gone: tuple[str, ...] = ()
    history: tuple[SweepHistory, ...] = ()

    @property
    def waiting(self) -> int:
        """How many cells have no verdict yet."""
        return sum(not cell.status for cell in self.cells)

    @property
    def failing(self) -> tuple[SweepCell, ...]:
        """The cells whose failure the baseline does not accept."""
        return tuple(cell for cell in self.cells if cell.baseline in ("new", "changed", "expired"))

    @property
    def flaky(self) -> tuple[SweepCell, ...]:
        """The cells whose repetitions came out differently."""
        return tuple(cell for cell in self.cells if cell.flaky)

    @property
    def exit_code(self) -> int:
        """0 nothing new, 1 something differs that is not accepted, 125 no answer that is not accepted."""
        words = {cell.status for cell in self.failing}
        return 1 if "differs" in words else 125 if words or self.waiting else 0
