"""The files that a check writes besides what it prints: JSON, JUnit, Markdown."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from torchparity.errors import UsageError
from torchparity.records import JointVerdict, Severity, Verdict
from torchparity.report.junit import write_junit
from torchparity.report.machine import write_json
from torchparity.report.summary import append_summary

FILES = ("--json", "--junit", "--summary")
NOISE = ("--quiet", "-q")
# Columns where nobody's terminal says how many there are.
WIDE = 400


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where to write what; `command` is the command line that shows it again."""

    json: Path | None = None
    junit: Path | None = None
    summary: Path | None = None
    command: str = ""

    def validated(self) -> Outputs:
        """Return this, or raise before anything runs where a file could not be written."""
        for path in (self.json, self.junit, self.summary):
            if path is not None and not path.absolute().parent.is_dir():
                raise UsageError(f"there is no folder {path.parent} to write {path.name} to", hint="make it first")
            if path is not None and path.is_dir():
                raise UsageError(f"{path} is a folder", hint=f"{', '.join(FILES)} want the name of a file")
        # Wherever the target goes: a path means the folder that the command was started in.
        here = {name: path.absolute() for name in ("json", "junit", "summary") if (path := getattr(self, name))}
        return replace(self, **here)

    def write(self, found: Verdict | JointVerdict) -> None:
        """Write the files that were asked for."""
        if self.json is not None:
            if isinstance(found, JointVerdict):
                from torchparity.ranks.report import write_joint

                write_joint(found, self.json)
            else:
                write_json(found, self.json)
        if self.junit is not None:
            write_junit(found, self.junit)
        if self.summary is not None:
            append_summary(found, self.summary, command=self.command)


def printing() -> Console:
    """Return the console of standard output: as wide as a terminal is, and elsewhere as wide as a line may be."""
    terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if terminal else Console(width=WIDE, soft_wrap=True)


def command_line(words: Sequence[str], *, ranks: int = 0) -> str:
    """Return a command line without the files it writes, ready for a shell; with ranks, under torchrun."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word in NOISE or word.partition("=")[0] in FILES:
            skip = not skip and word in FILES
            continue
        kept.append(word)
    start = ["torchrun", "--nproc-per-node", str(ranks), "-m"] if ranks else []
    return shlex.join([*start, "torchparity", *kept])


def gated(verdict: Verdict, level: Severity, *, compiled: float = 0.0) -> int:
    """Return the exit code of a verdict that matters from a level on, and where so much of the model was compiled."""
    code: int = verdict.exit_code
    share = verdict.compiled.share if verdict.compiled is not None else None
    if code == 0 and compiled and (share is None or share < compiled):
        told = f"{share:.0%}" if share is not None else "an unknown share"
        print(f"{told} of the model was compiled, and {compiled:.0%} is asked for: no answer", file=sys.stderr)
        return 125
    if code == 1 and not verdict.fails(level):
        print(f"severity {verdict.severity.value}, below {level.value}: not a failure here", file=sys.stderr)
        return 0
    return code
