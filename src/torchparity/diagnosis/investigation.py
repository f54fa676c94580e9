"""One investigation in progress: runs its stages one by one, keeps what each found, and ends well however it ends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from torchparity.errors import ParityError
from torchparity.records import (
    DONE,
    NOTHING,
    SKIPPED,
    STAGES,
    STOPPED,
    Diagnosis,
    StageCallback,
    StageProgress,
    StageRun,
)
from torchparity.workers.outcome import Limits

T = TypeVar("T")
# What a stage usually takes, as a share of the first check: for the estimate of the time left, and nothing else.
SHARES = {"check": 1.0, "story": 0.1, "graph": 0.7, "locate": 0.6, "minify": 1.6, "blame": 0.4}
# How a run ended that did not come to its end: it was killed.
UNFINISHED = "unfinished"
# Under this many seconds nothing more is begun.
TOO_LITTLE = 2.0


class OutOfTime(Exception):
    """The budget ended while a stage was under way."""


class Investigation:
    """Keeps a diagnosis while it grows.

    A stage that fails with an error of ours found nothing, and the others go on; one that the budget or the user ends
    is stopped. After each stage `save` is called, so that a kill leaves everything up to there.
    """

    def __init__(
        self,
        *,
        subject: str,
        backend: str,
        folder: str = "",
        budget: float | None = None,
        listen: StageCallback | None = None,
        save: Callable[[Diagnosis], None] | None = None,
    ) -> None:
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        self.found = Diagnosis(subject=subject, backend=backend, began=now, folder=folder, ended=UNFINISHED)
        self.budget, self.listen, self.save = budget, listen, save
        self.began = time.monotonic()
        self.current = STAGES[0]
        self.error: ParityError | None = None

    @property
    def left(self) -> float | None:
        """How many seconds of the budget are left; None where there is none."""
        return None if self.budget is None else max(0.0, self.budget - (time.monotonic() - self.began))

    def limits(self, limits: Limits) -> Limits:
        """Return limits that no single run may stretch beyond the budget."""
        left = self.left
        return limits if left is None else dataclasses.replace(limits, seconds=max(1.0, min(limits.seconds, left)))

    def stage(
        self,
        name: str,
        work: Callable[[], T | None],
        *,
        keep: Callable[[T], dict[str, Any]],
        needed: bool = False,
    ) -> T | None:
        """Run one stage; return what it found, None where that is nothing or there was no time for it.

        What is found is kept as `keep` makes facts of it. What is `needed` raises its errors: without it there is
        nothing to tell.
        """
        self.current, self.error = name, None
        if self.left is not None and self.left < TOO_LITTLE:
            self._note(name, SKIPPED, 0.0, "the budget is spent")
            return None
        self.tell("")
        started = time.monotonic()
        ending, note, result = DONE, "", None
        try:
            result = work()
        except ParityError as error:
            if needed:
                raise
            self.error = error
            ending, note = NOTHING, error.message
        except OutOfTime:
            ending, note = STOPPED, "the budget is spent"
        except KeyboardInterrupt:
            self._note(name, STOPPED, time.monotonic() - started, "interrupted")
            raise
        self._note(name, ending, time.monotonic() - started, note, **(keep(result) if result is not None else {}))
        return result

    def keep(self, **facts: Any) -> None:
        """Keep what a stage found besides."""
        self.found = dataclasses.replace(self.found, **facts)
        self._save()

    def tell(self, doing: str) -> None:
        """Say what is being done; ends the stage where its time is over."""
        if self.left is not None and self.left <= 0:
            raise OutOfTime
        self.say(doing)

    def say(self, doing: str, left: float | None = None) -> None:
        """Say what is being done, and about how long the stage will still take where that is known."""
        if self.listen is None:
            return
        number = STAGES.index(self.current) + 1
        expected = self.expected(left)
        self.listen(StageProgress(stage=self.current, number=number, stages=len(STAGES), doing=doing, left=expected))

    def expected(self, left: float | None) -> float | None:
        """Return about how long it will still take, measured by the first check; None before that."""
        check = next((run.seconds for run in self.found.stages if run.name == "check"), None)
        if check is None:
            return None
        done = {run.name for run in self.found.stages}
        ahead = sum(SHARES[name] for name in STAGES if name not in done and name != self.current) * check
        now = left if left is not None else SHARES[self.current] * check
        return ahead + now if self.left is None else min(ahead + now, self.left)

    def end(self, why: str = "", **facts: Any) -> Diagnosis:
        """Close the investigation: say why it ended, where that was before its last stage."""
        seconds = time.monotonic() - self.began
        self.found = dataclasses.replace(self.found, ended=why, seconds=seconds, **facts)
        self._save()
        return self.found

    def _note(self, name: str, ending: str, seconds: float, note: str, **facts: Any) -> None:
        run = StageRun(name=name, ending=ending, seconds=seconds, note=note)
        spent = time.monotonic() - self.began
        stages = (*self.found.stages, run)
        self.found = dataclasses.replace(self.found, stages=stages, seconds=spent, **facts)
        self._save()

    def _save(self) -> None:
        if self.save is not None:
            self.save(self.found)
