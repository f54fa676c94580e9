"""A sweep as it goes on, on stderr: a live table on a terminal, one line for each cell elsewhere."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchparity.fleet.cells import options_text

if TYPE_CHECKING:
    from torchparity.fleet.store import Judged
    from torchparity.fleet.sweep import Progress

COLOURS = {"same": "green", "differs": "red", "unknown": "yellow"}
# How many cells are shown of those that run, and of those that were judged last.
RUNNING, JUDGED = 8, 6
WIDTH = 60


class SweepWatcher:
    """Hears how far a sweep is, and shows it."""

    def __init__(self, *, quiet: bool, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.quiet = quiet
        shows = self.console.is_terminal and not quiet
        self.live = Live(console=self.console, transient=True, refresh_per_second=4) if shows else None
        self.judged: deque[Judged] = deque(maxlen=JUDGED)
        self.since: dict[str, float] = {}
        self.told = 0

    def __enter__(self) -> SweepWatcher:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def hear(self, progress: Progress) -> None:
        """Show how far the sweep is."""
        if progress.newest is not None:
            self.judged.append(progress.newest)
        if self.live is not None:
            self.live.update(self.picture(progress))
        elif not self.quiet and progress.newest is not None and progress.done > self.told:
            self.told = progress.done
            cell = progress.newest
            line = f"[{progress.done}/{progress.cells}] {cell.status:8} {cell.seconds:6.1f} s  {cell.cell.title}  "
            line += options_text(cell.cell.options)
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def picture(self, progress: Progress) -> Group:
        """Return what is shown: the bar and the counts, what was judged last, what runs and for how long."""
        now = time.monotonic()
        self.since = {title: self.since.get(title, now) for title in progress.running}
        table = Table(box=None, padding=(0, 1), show_header=False)
        for cell in self.judged:
            status = Text(cell.status, style=COLOURS.get(cell.status, ""))
            told = Text(f"{cell.cell.title}  {options_text(cell.cell.options)}", overflow="ellipsis", no_wrap=True)
            table.add_row(status, f"{cell.seconds:.1f} s", told)
        for title in progress.running[:RUNNING]:
            table.add_row(Text("running", style="cyan"), f"{now - self.since[title]:.0f} s", Text(title, no_wrap=True))
        if len(progress.running) > RUNNING:
            table.add_row("", "", f"and {len(progress.running) - RUNNING} more")
        return Group(ProgressBar(progress.cells, progress.done, width=WIDTH), self.headline(progress), table)

    def headline(self, progress: Progress) -> Text:
        """Return how many cells came out how, and how long the rest will take."""
        left = time.strftime("%H:%M:%S", time.gmtime(progress.seconds_left))
        line = Text(f"{progress.done} of {progress.cells}")
        for status, count in sorted(progress.statuses.items()):
            line.append(f"  {count} {status}", style=COLOURS.get(status, ""))
        return line.append(f"  about {left} left")
