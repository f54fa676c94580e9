"""Eager runs that may take their process along: noted before and after, under a time limit, never run twice.

The process of a search is expendable. What was being tried when it died stands in a file beside the log; the next
process finds it among the fatal ones and passes it by.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import torch

from torchparity import torchapi

T = TypeVar("T")
NAME = "trying"
# A process whose device is lost can do nothing more.
LOST = 3


class Trials:
    """Where tries are noted, what is known to be fatal, and how long one may take."""

    def __init__(self, folder: Path, fatal: set[str], seconds: float) -> None:
        self.path = folder / NAME
        self.fatal = fatal
        self.seconds = seconds

    def run(self, key: str, action: Callable[[], T]) -> T | None:
        """Run an action; None where it was fatal before. A hang ends this process, as a crash does."""
        if key in self.fatal:
            return None
        self.path.write_text(key, encoding="utf-8")
        faulthandler.dump_traceback_later(self.seconds, exit=True)
        try:
            return action()
        finally:
            faulthandler.cancel_dump_traceback_later()
            leave_if_lost()
            self.path.write_text("", encoding="utf-8")


def leave_if_lost() -> None:
    """End this process where an error of the device sticks: every later call would fail for it."""
    if torch.cuda.is_initialized() and torchapi.device_lost(torch.device("cuda")):
        os._exit(LOST)


def fatal_key(folder: Path) -> str:
    """Return what was being tried when a process died; empty where nothing was."""
    path = folder / NAME
    return path.read_text(encoding="utf-8") if path.is_file() else ""


_current: ContextVar[Trials | None] = ContextVar("trials", default=None)


@contextmanager
def under(trials: Trials) -> Iterator[None]:
    """Let everything that is tried inside be noted."""
    token = _current.set(trials)
    try:
        yield
    finally:
        _current.reset(token)


def tried(key: str, action: Callable[[], T]) -> T | None:
    """Run something eagerly that may take the process along; None where it is known to."""
    trials = _current.get()
    return action() if trials is None else trials.run(key, action)
