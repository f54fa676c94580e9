"""`make bench-diagnose`: the five lines of `diagnose` on real bugs, and its time beside the stock tool's.

Each bug stands in a model of more than 200 nodes (benchmarks/bugs.py). A line is right where it agrees with the table:

what    the kind of difference
where   the operation's source line is inside the function that holds the bug
stage   the stage of the compiler that its thread or source names
script  at most three operations, reproduced three times of three
page    is there

The stock tool is told to minify wrong results (level 4), after AOTAutograd as it is by default.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bugs import BUGS, BY_NAME, Bug
from benchmarks.diagnosis import SAME_STAGE
from benchmarks.minify import stock_bug

ROOT = Path(__file__).resolve().parents[1]
LINES = ("what", "where", "stage", "script", "page")
SMALL = 3
TARGET = """
import sys
sys.path.insert(0, {root!r})
import torch
from benchmarks.bugs import BY_NAME
torch.set_default_device({device!r})
make = BY_NAME[{name!r}].make
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a diagnosis of a bug came to: which of its five lines are right, the lines, its time and its check's."""

    right: dict[str, bool]
    lines: list[str]
    seconds: float
    check: float = 0.0
    fails_here: bool = True

    @property
    def ratio(self) -> float:
        """How many of its own checks it took."""
        return self.seconds / self.check if self.check else float("nan")


def diagnose(bug: Bug, folder: Path, device: str = "cpu") -> Outcome:
    """Run the command as a user would, and judge its five lines."""
    target = TARGET.format(root=str(ROOT), name=bug.name, device=device)
    (folder / "target.py").write_text(target, encoding="utf-8")
    command = [sys.executable, "-m", "torchparity", "diagnose", "target.py:make", "--json", "-q", "--out", "run"]
    command += ["--train"] if bug.train else []
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    try:
        data = json.loads(done.stdout)
    except ValueError:
        return Outcome(right=dict.fromkeys(LINES, False), lines=[done.stderr[-300:]], seconds=seconds)
    lines = [f"{word} {text}" for word, text in data["lines"]]
    fails = data["status"] != "same"  # Some bugs are those of one processor's code only.
    check = sum(stage["seconds"] for stage in data["stages"] if stage["name"] == "check")
    right = judged(bug, data, folder / "run")
    return Outcome(right=right, lines=lines, seconds=seconds, check=check, fails_here=fails)


def judged(bug: Bug, data: dict[str, Any], folder: Path) -> dict[str, bool]:
    """Tell which of the five lines are right."""
    verdict, located, small, blame = (data[name] or {} for name in ("verdict", "located", "smallest", "blame"))
    kinds = {mismatch["kind"] for leaf in verdict.get("leaves", ()) for mismatch in leaf["mismatches"]}
    failure = verdict.get("failure") or {}
    if failure:
        kinds.add(failure["stage"] if failure["stage"] in ("crashes", "accepts_invalid") else "raises")
    line = (located.get("culprit") or {}).get("line", "")
    return {
        "what": data["status"] == "differs" and bool(kinds & {bug.kind, *bug.also}),
        "where": inside(bug, line),
        "stage": blame.get("stage") in SAME_STAGE[bug.stage],
        "script": bool(small) and small["reproduced"] == [3, 3] and small["operations"] <= SMALL,
        "page": (folder / "index.html").is_file(),
    }


def inside(bug: Bug, line: str) -> bool:
    """Tell whether a source line is one of the function that holds a bug."""
    found = re.match(r"(.+?):(\d+) in ", line)
    text, first = inspect.getsourcelines(bug.operation)
    return found is not None and Path(found[1]).name == "bugs.py" and first <= int(found[2]) < first + len(text)


def bench(console: Console, bugs: list[Bug], *, stock: bool, limit: float) -> None:
    """Diagnose every bug, and let the stock tool try each after it."""
    table = Table("bug", *LINES, "seconds", "over its check", "stock's", "stock over ours", "stock ends with")
    right = asked = 0
    ratios = []
    for bug in bugs:
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            ours = diagnose(bug, Path(name))
        if not ours.fails_here:
            table.add_row(bug.name, *["-"] * len(LINES), f"{ours.seconds:.0f}", "", "", "", "does not fail here")
            print(f"{bug.name}: does not fail on this machine, {ours.seconds:.0f} s", file=sys.stderr)
            continue
        right, asked = right + all(ours.right.values()), asked + 1
        theirs, ending = 0.0, "not run"
        if stock:
            started = time.monotonic()
            ending = stock_bug(bug, "aot", limit)
            theirs = time.monotonic() - started
        marks = ["yes" if ours.right[line] else "no" for line in LINES]
        ratio = f"{theirs / ours.seconds:.1f}" if stock else ""
        ratios.append(ours.ratio)
        times = (f"{ours.seconds:.0f}", f"{ours.ratio:.2f}", f"{theirs:.0f}")
        table.add_row(bug.name, *marks, *times, ratio, ending)
        told = f"{ours.seconds:.0f} s, {ours.ratio:.2f} of its check"
        print(f"{bug.name}: {' '.join(marks)}, {told}; stock {theirs:.0f} s, {ending}", file=sys.stderr)
        for line in ours.lines:
            print(f"    {line}", file=sys.stderr, flush=True)
    console.print(table)
    median = statistics.median(ratios) if ratios else float("nan")
    console.print(f"all five lines right: {right} of {asked}; {median:.2f} times its own check (median)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="append", default=[], help="only this one; may be given again")
    parser.add_argument("--no-stock", action="store_true", help="ours alone")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which the stock tool is stopped")
    options = parser.parse_args()
    unknown = [name for name in options.bug if name not in BY_NAME]
    if unknown:
        parser.error(f"there is no bug named {', '.join(unknown)}")
    bugs = [bug for bug in BUGS if not options.bug or bug.name in options.bug]
    bench(Console(width=150), bugs, stock=not options.no_stock, limit=options.limit)


if __name__ == "__main__":
    main()
