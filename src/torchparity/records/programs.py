"""Programs of Python that were made small."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SmallProgram"]


@dataclass(frozen=True, kw_only=True)
class SmallProgram:
    """The smallest program of Python that fails as a model does: its text, and the script of torch alone that shows it.

    `script` is empty where none could be verified. `beyond_default` tells whether default tolerances are exceeded.
    `operations` are its own, `started_from` those of the model. `finished` tells whether nothing was left to try,
    `reproduced` how often the script failed, of how many runs.
    """

    text: str
    script: str = ""
    output: str = ""
    beyond_default: bool = False
    kind: str = ""
    reasons: tuple[str, ...] = ()
    operations: int = 0
    started_from: int = 0
    questions: int = 0
    finished: bool = True
    reproduced: tuple[int, int] = (0, 0)

    @property
    def lines(self) -> int:
        """How many lines the script has, or the program where there is none; empty ones do not count."""
        return sum(bool(line.strip()) for line in (self.script or self.text).splitlines())
