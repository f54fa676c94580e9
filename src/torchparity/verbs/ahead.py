"""What a diagnosis asks before it is known to be needed: a check compiles on one core, and the others are idle.

Graphs that the check is about to compile are tapped meanwhile, as if each were the one that fails. What was asked about
a graph that agrees is dropped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from torchparity.diagnosis.locate import tapped_whole
from torchparity.errors import ParityError
from torchparity.records import Located, Progress
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case
from torchparity.request import Request
from torchparity.workers.outcome import Limits, Outcome
from torchparity.workers.pool import Pool

# So many graphs are asked about; of a model with more, nobody can tell which one it will be.
GRAPHS = 3
# It takes less than this to read what a tapped graph says.
SOON = 2.0


class Ahead:
    """Graphs that were tapped while the check was still under way, in a folder of their own.

    `begin` hears of the first of them: the model is small enough to be looked at twice at once.
    """

    def __init__(self, pool: Pool, limits: Limits, *, begin: Callable[[], object] | None = None) -> None:
        self.pool, self.limits, self.begin = pool, limits, begin
        self.held = tempfile.TemporaryDirectory(prefix="torchparity-")
        self.asked: dict[Path, Future[Outcome]] = {}

    def folder(self, request: Request) -> Path | None:
        """Return where graphs are to be written ahead; None where that would be in the check's way.

        Every worker may be busy with the check, and what is tuned by timing is to be timed alone.
        """
        tuned = (request.mode or "").startswith("max-autotune")
        return Path(self.held.name) if self.pool.workers > 1 and not tuned else None

    def hear(self, event: Progress) -> None:
        """Have a graph tapped that was just written down."""
        bundle = Path(event.bundle)
        if len(self.asked) < GRAPHS and bundle not in self.asked:
            if not self.asked and self.begin is not None:
                self.begin()
            self.asked[bundle] = tapped_whole(bundle, self.pool, self.limits)

    def of(self, case: Case) -> Future[Outcome] | None:
        """Return what was asked about a graph; what was asked about the others is dropped."""
        found = None
        for bundle, asked in self.asked.items():
            if found is None and is_of(bundle, case):
                found = asked
            else:
                self.pool.drop(asked)
        return found

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Drop what is still asked."""
        for asked in self.asked.values():
            self.pool.drop(asked)
        self.held.cleanup()


def told(locating: Future[Located], tapped: Future[Outcome] | None, *, wait: bool) -> Located | None:
    """Return what is found of the place of the error, or will be soon: what was asked ahead is nearly answered.

    To ask about every operation meanwhile would only take the time of a core from it.
    """
    if not wait and tapped is not None:
        futures.wait([tapped])
        futures.wait([locating], timeout=SOON)
    if not wait and not locating.done():
        return None
    return locating.result() if locating.exception() is None else None


def is_of(bundle: Path, case: Case) -> bool:
    """Tell whether a bundle is the case: the same graph, of the same inputs, compiled in the same way."""
    try:
        return read_bundle(bundle).digest == case.digest
    except ParityError:
        return False
