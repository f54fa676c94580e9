"""Where a process stands that does not end: its own watchdog prints that, and whoever gave it up reads it."""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Callable

from torchparity.records import Progress

STDERR = 2
# The watchdog prints so many threads and no more: the one that works, which is the first of a process, comes last.
THREADS = 100
DUMP = re.compile(r"Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!\n((?:(?:Current t|T)hread 0x.*\n(?:  .*\n)*\n?)*)")
THREAD = re.compile(r"^(?:Current t|T)hread 0x.*$", re.MULTILINE)
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def watching(tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return what tells of runs and has this process print where it stands, again and again while a candidate runs."""

    def told(event: Progress) -> None:
        faulthandler.cancel_dump_traceback_later()
        if event.candidate and event.patience:
            faulthandler.dump_traceback_later(event.patience, repeat=True, file=STDERR)
        tell(event)

    return told


def place_in(output: str) -> str:
    """Return where a process stood when it last said so; nothing where it never did, or has too many threads for it."""
    dumps: list[str] = DUMP.findall(output)
    threads = THREAD.split(dumps[-1])[1:] if dumps else []
    frame = FRAME.search(threads[-1]) if 0 < len(threads) < THREADS else None
    return f"{frame[1]}:{frame[2]} in {frame[3]}" if frame is not None else ""


def without_dumps(output: str) -> str:
    """Return what a process printed itself."""
    return DUMP.sub("", output)
