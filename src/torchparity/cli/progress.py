"""Progress on stderr: which run of how many, and for how long."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from torchparity import records


class ProgressLine:
    """One line on stderr: which run of how many, and for how long."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self.plain = not console.is_terminal and not quiet
        self.console = console
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("run {task.completed} of {task.total}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or self.plain,
        )
        self.task = self.bar.add_task("loading", total=None)

    def __enter__(self) -> ProgressLine:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, event: records.Progress) -> None:
        """Show the run that is about to start."""
        if self.plain:
            self.console.print(f"run {event.run} of {event.runs}: {event.name}", highlight=False)
        self.bar.update(self.task, description=event.name, completed=event.run, total=event.runs)
