"""How thoroughly a judge looks, and what it does not mind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchparity.compare.judgement import Tolerance
from torchparity.records import Kind, ProgressCallback, RunRecord
from torchparity.request import PLAIN, Request


def alone(question: str, number: int) -> int:
    """Answer a question that other ranks might have a larger answer to, where there are none."""
    return number


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How thoroughly to look."""

    tolerance: Tolerance = field(default_factory=Tolerance)
    noise_runs: int = PLAIN.noise_runs
    candidate_runs: int = PLAIN.candidate_runs
    reference: bool = True
    allow_eager: bool = False
    exact: bool = False
    every_choice: bool = False
    # Whether the data are exact already, so that it is worth to follow what stays exact.
    on_exact_data: bool = False
    # Whether the data are others than those with which the candidate was recorded.
    on_other_data: bool = False
    progress: ProgressCallback | None = None
    # Where other ranks run the same model: how often must all of them run it, and how did a run end?
    agree: Callable[[str, int], int] = alone
    ended: Callable[[RunRecord], None] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the settings as plain data, by the names of the request's options."""
        return {
            "tolerance": self.tolerance.relative,
            "ignore": sorted(kind.value for kind in self.tolerance.ignore),
            "reference": self.reference,
            "noise_runs": self.noise_runs,
            "candidate_runs": self.candidate_runs,
            "allow_eager": self.allow_eager,
            "exact": self.exact,
            "every_choice": self.every_choice,
        }


def settings_of(request: Request, *, progress: ProgressCallback | None = None) -> Settings:
    """Return how thoroughly a request wants to look, and what it does not mind."""
    return Settings(
        tolerance=Tolerance(relative=request.tolerance, ignore=frozenset(map(Kind, request.ignore))),
        noise_runs=request.noise_runs,
        candidate_runs=request.candidate_runs,
        reference=request.reference,
        allow_eager=request.allow_eager,
        exact=request.exact,
        every_choice=request.every_choice,
        progress=progress,
    )
