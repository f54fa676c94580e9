"""What a terminal shows while a sweep goes on; and what a log gets."""

import io

from rich.console import Console

from torchparity.cli.live import RUNNING, SweepWatcher
from torchparity.fleet.cells import Cell
from torchparity.fleet.store import Judged
from torchparity.fleet.sweep import Progress


def progress(number, running=("m.py:slow",)):
    newest = Judged(id=number, environment=0, cell=Cell(target=f"m.py:m{number}"), status="differs", seconds=2.0)
    return Progress(
        done=number, cells=40, statuses={"same": number - 1, "differs": 1}, seconds_left=3700.0, running=running,
        newest=newest,
    )  # fmt: skip


def heard(*, terminal, times=3, running=("m.py:slow",)):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    with SweepWatcher(quiet=False, console=console) as watcher:
        for number in range(1, times + 1):
            watcher.hear(progress(number, running))
        if terminal:
            console.print(watcher.picture(progress(times, running)))
    return console.file.getvalue()


def test_a_terminal_sees_a_table():
    told = heard(terminal=True)
    for wanted in ("3 of 40", "2 same", "1 differs", "about 01:01:40 left", "running", "m.py:slow", "m.py:m3"):
        assert wanted in told, wanted


def test_what_does_not_fit_is_counted():
    assert "and 5 more" in heard(terminal=True, running=tuple(f"m.py:r{place}" for place in range(RUNNING + 5)))


def test_a_log_gets_a_line_for_each_cell():
    lines = heard(terminal=False).splitlines()
    assert [line[:6] for line in lines] == ["[1/40]", "[2/40]", "[3/40]"]
    assert "differs" in lines[0]


def test_quiet_is_quiet():
    console = Console(file=io.StringIO(), force_terminal=True)
    with SweepWatcher(quiet=True, console=console) as watcher:
        watcher.hear(progress(1))
    assert console.file.getvalue() == ""
