"""Progress on stderr: a line that changes on a terminal, and next to nothing elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status as Spinner

from torchparity import records

if TYPE_CHECKING:
    from torchparity.minifier.questions import Asked


class ProgressLine:
    """One line on stderr: which run of how many, and for how long."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("run {task.completed} of {task.total}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.bar.add_task("loading", total=None)

    def __enter__(self) -> ProgressLine:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, event: records.Progress) -> None:
        """Show the run that is about to start."""
        self.bar.update(self.task, description=event.name, completed=event.run, total=event.runs)


class Watcher:
    """Progress on stderr: a line that changes on a terminal, one line for each stage elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.spinner = Spinner("", console=self.console) if self.console.is_terminal and not quiet else None
        self.began = time.monotonic()

    def __enter__(self) -> Watcher:
        if self.spinner is not None:
            self.spinner.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.spinner is not None:
            self.spinner.stop()

    def say(self, text: str) -> None:
        """Show what is being done."""
        if self.spinner is not None:
            self.spinner.update(escape(text))
        elif not self.quiet:
            self.console.print(escape(text), highlight=False, soft_wrap=True)

    def __call__(self, asked: Asked) -> None:
        """Show a query that was answered, and how far it all is."""
        rate = asked.seconds / max(1, asked.number)
        left = f", about {asked.expected_seconds:.0f} s left" if asked.left else ""
        text = (
            f"query {asked.number} ({asked.stage}): {asked.compute_nodes} operations, "
            f"{asked.word}; best {asked.best}; {rate:.1f} s a query{left}"
        )
        if self.spinner is not None:
            self.say(text)
