"""What a minification hands over, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchparity.minifier.delivery import VERIFICATIONS
from torchparity.records import Signature
from torchparity.repro.case import Case


@dataclass(frozen=True, kw_only=True)
class Minified:
    """The smallest case found: verified, with the script to hand over and everything that finding it took.

    `reproduced` counts the cold processes in which the script failed as it should. `others` are cases that fail in
    another way, `passing` is the nearest one that does not fail. `complete` is False where the budget or the user
    ended the search. `unanswered` questions had no answer; nothing rests on them.
    """

    case: Case
    folder: Path | None = None
    reproduced: tuple[int, int] = (0, VERIFICATIONS)
    queries: int = 0
    unanswered: int = 0
    seconds: float = 0.0
    complete: bool = True
    script: str = ""
    script_output: str = ""
    script_is_plain: bool = False
    title: str = ""
    passing: Case | None = None
    others: Mapping[str, Case] = field(default_factory=dict)
    log: tuple[Mapping[str, Any], ...] = ()
    started_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compute_nodes(self) -> int:
        """How many operations are left."""
        return self.case.compute_nodes

    @property
    def signature(self) -> Signature:
        """How it fails."""
        assert self.case.signature is not None
        return self.case.signature
