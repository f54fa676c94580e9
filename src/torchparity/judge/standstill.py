"""Where a process stands that does not end: its own watchdog prints that, and whoever gave it up reads it."""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Callable
from dataclasses import dataclass

from torchparity import torchapi
from torchparity.records import Progress

STDERR = 2
DUMP = re.compile(r"^Timeout \(.*\)!$", re.MULTILINE)
THREAD = re.compile(r"^(?:Current t|T)hread 0x.*$", re.MULTILINE)
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The frames of the thread that works, the innermost first, and whether they were the same a while before."""

    frames: tuple[tuple[str, str, str], ...]
    still: bool

    @property
    def place(self) -> str:
        """The innermost of them."""
        file, line, function = self.frames[0]
        return f"{file}:{line} in {function}"

    @property
    def compiling(self) -> bool:
        """Whether it is a compiler that works there, and not what it has made."""
        return any(part in file for file, _, _ in self.frames for part in torchapi.COMPILING)


def watching(tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return what tells of runs and has this process print where it stands, again and again while a candidate runs."""

    def told(event: Progress) -> None:
        faulthandler.cancel_dump_traceback_later()
        if event.candidate and event.patience:
            faulthandler.dump_traceback_later(event.patience, repeat=True, file=STDERR)
        tell(event)

    return told


def standing_in(output: str) -> Standing | None:
    """Return where a process stood when it last said so; nothing where it never did."""
    dumps = [frames for text in DUMP.split(output)[1:] if (frames := _frames(text))]
    return Standing(frames=dumps[-1], still=dumps[-1:] == dumps[-2:-1]) if dumps else None


def _frames(dump: str) -> tuple[tuple[str, str, str], ...]:
    """Return the frames of the first thread of a process: the one that works, and the last that is printed."""
    threads = THREAD.split(dump)
    return tuple(match.groups() for match in FRAME.finditer(threads[-1]))  # type: ignore[misc]
