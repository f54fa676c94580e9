"""A cell of a sweep: one target, compiled, run and judged in one way. Plain data; its key tells it from all others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SECONDS = 600.0
# How long a cell is taken to need before anybody has seen it.
GUESS_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One check of a sweep. `parameters` go to the factory, `options` are those of `check`, with device, dtype, batch.

    `seconds` and `memory` (bytes) are limits, `labels` words to filter by, `repeat` counts checks of the same cell.
    """

    target: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = SECONDS
    memory: int | None = None
    labels: tuple[str, ...] = ()
    repeat: int = 0

    @property
    def title(self) -> str:
        """The target with its parameters: what a row of a table is called."""
        given = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.target}({given})" if given else self.target

    @property
    def key(self) -> str:
        """What tells a cell from others, in every sweep: limits, labels and repetitions do not."""
        told = json.dumps([self.target, dict(self.parameters), dict(self.options)], sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def options_text(options: Mapping[str, Any]) -> str:
    """Return options as a person writes them: `backend=inductor train`; `defaults` where there are none."""
    words = []
    for name, value in sorted(options.items()):
        if value is True:
            words.append(name)
        elif isinstance(value, Mapping):
            words += [f"{name}.{key}={item}" for key, item in sorted(value.items())]
        elif isinstance(value, list | tuple):
            words.append(f"{name}={','.join(map(str, value))}")
        else:
            words.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return " ".join(words) or "defaults"
