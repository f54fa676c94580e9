"""Real bugs of the installed PyTorch that live in no single graph, each in a file with a model of twelve blocks.

    python -m benchmarks.nograph [--bug NAME]

Dynamo itself, a write to an input that is lost, a result that is an input's own memory, what lies between two graphs:
`torchparity diagnose` shall end in a script of torch alone, of at most 15 lines, that fails three times of three and
works where nothing is compiled.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LONGEST, TIMES = 15, 3
MODEL = """
import collections

import torch
from torch import nn

{top}

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(12))

    def forward(self, x, {given}):
        for block in self.blocks[:6]:
            x = block(x)
{lines}
        for block in self.blocks[6:]:
            x = block(x)
        return x, {returned}


def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(2, 4, 16), {made})
"""


@dataclass(frozen=True, kw_only=True)
class NoGraph:
    """A bug: lines in the middle of a model, with one more argument, and what is returned beside the stream."""

    name: str
    title: str
    lines: tuple[str, ...]
    top: str = ""
    given: str = "extra"
    made: str = "torch.arange(6.0)"
    returned: str = "extra"
    options: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the file of its model."""
        lines = "\n".join(f"        {line}" for line in self.lines)
        return MODEL.format(top=self.top, given=self.given, lines=lines, returned=self.returned, made=self.made)


BUGS = (
    NoGraph(
        name="addcdiv", title="Dynamo divides before it scales: Inf where eager is finite",
        lines=("big = extra * 1e38", "found = torch.addcdiv(extra, big, extra / 10, value=1e-3)"),
        made="torch.arange(1.0, 3.0)", returned="found",
    ),
    NoGraph(
        name="full-of-flag", title="Dynamo makes full() of a bool tensor float32",
        lines=("flag = torch.full((2, 3), extra > 0)", "found = flag + flag"),
        made="torch.tensor(1.0)", returned="found",
    ),
    NoGraph(
        name="scalar-write", title="a write to a float64 scalar tensor is lost",
        lines=("extra.add_(1)",), made="torch.ones((), dtype=torch.float64)", returned="None",
    ),
    NoGraph(
        name="dropout-write", title="a write behind dropout that does nothing is lost",
        lines=("nn.functional.dropout(extra, training=False).add_(1)",), returned="None",
    ),
    NoGraph(
        name="unfold-gaps", title="a write through windows zeroes what lies between them",
        lines=("extra.unfold(0, 1, 2).add_(1)",), made="torch.ones(6)", returned="None",
    ),
    NoGraph(
        name="shape-after-unsqueeze", title="the shape before a view in place is returned",
        lines=("bent = extra.abs()", "bent.unsqueeze_(0)", "shape = bent.shape"), returned="shape",
    ),
    NoGraph(
        name="zeros-plus", title="what is added to zeros is the input itself",
        lines=("found = torch.zeros_like(extra) + extra",), returned="found",
    ),
    NoGraph(
        name="clone", title="a clone is the input itself",
        lines=("zero = torch.tensor([0])", "extra.index_add_(0, zero, extra.index_select(0, zero))"),
        returned="extra.clone()", options=("--dynamic",),
    ),
    NoGraph(
        name="set", title="a tensor that was set to the input's memory is a copy",
        lines=("found = torch.tanh(extra)", "found.set_(extra)", "extra.add_(1)"), returned="found",
    ),
    NoGraph(
        name="view-behind-break", title="a view of what was written to, behind a graph break, raises",
        lines=(
            "whole = extra.to(torch.int64)", "flat = whole.reshape(1)", "extra = extra if extra else extra",
            "whole.add_(0)", "best = flat.argmax()",
        ),
        made="torch.ones(1, 1)", returned="whole.view(torch.int64)",
    ),
    NoGraph(
        name="deque", title="Dynamo counts what a full queue has already dropped",
        top="QUEUE = collections.deque(maxlen=2)",
        lines=("QUEUE.extend([1, 2])", "QUEUE.append(3)", "size = len(QUEUE)"),
        returned="size",
    ),
)  # fmt: skip
BY_NAME = {bug.name: bug for bug in BUGS}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What one diagnosis ended in: its lines, its script, how often that failed of three, and worked uncompiled."""

    lines: list[str]
    seconds: float
    script: str = ""
    failed: int = 0
    worked: int = 0

    @property
    def length(self) -> int:
        """Lines of the script, but for its first words, empty ones and what only prints."""
        tree = ast.parse(self.script)
        words = tree.body[0].end_lineno or 0 if ast.get_docstring(tree) else 0
        lines = self.script.splitlines()[words:]
        return sum(bool(line.strip()) and not line.startswith(("#", "print(")) for line in lines)

    @property
    def right(self) -> bool:
        """Whether it is what a maintainer wants."""
        return self.failed == self.worked == TIMES and self.length <= LONGEST


def diagnose(bug: NoGraph, folder: Path) -> Ended:
    """Run the command as a user would; run the script that it ends in three times, compiled and not."""
    (folder / "model.py").write_text(bug.text(), encoding="utf-8")
    command = [sys.executable, "-m", "torchparity", "diagnose", "model.py:make", "--json", "-q", "--out", "run"]
    started = time.monotonic()
    done = subprocess.run([*command, *bug.options], cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    try:
        data: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return Ended(lines=[done.stderr[-300:]], seconds=seconds)
    lines = [f"{word} {text}" for word, text in data["lines"]]
    script = folder / "run" / ((data["smallest"] or {}).get("script_path") or "none")
    if not script.is_file() or script.name != "repro.py":
        return Ended(lines=lines, seconds=seconds)
    return Ended(
        lines=lines,
        seconds=seconds,
        script=script.read_text(encoding="utf-8"),
        failed=sum(run_script(script, {}) == 1 for _ in range(TIMES)),
        worked=sum(run_script(script, {"TORCHDYNAMO_DISABLE": "1"}) == 0 for _ in range(TIMES)),
    )


def run_script(script: Path, more: dict[str, str]) -> int:
    """Run a script in a folder of its own; return its exit code."""
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, env={**os.environ, **more}, check=False)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="append", default=[], choices=sorted(BY_NAME), help="only this one; again")
    options = parser.parse_args()
    console, table = Console(width=150), Table("bug", "what it is", "lines", "fails", "works uncompiled", "seconds")
    right = 0
    bugs = [bug for bug in BUGS if not options.bug or bug.name in options.bug]
    for bug in bugs:
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            ended = diagnose(bug, Path(name))
        right += ended.right
        counts = (str(ended.length), f"{ended.failed} of {TIMES}", f"{ended.worked} of {TIMES}")
        table.add_row(bug.name, bug.title, *counts, f"{ended.seconds:.0f}")
        console.print(
            f"{bug.name}: {', '.join(counts)}", *ended.lines, ended.script, sep="\n", highlight=False, markup=False
        )
    console.print(table)
    console.print(f"a script of at most {LONGEST} lines that fails, and works uncompiled: {right} of {len(bugs)}")


if __name__ == "__main__":
    main()
