"""A real campaign, killed at random moments: nothing that it found is lost, and nothing is counted twice.

    python -m benchmarks.kills --times 50

Somebody reads the store while the hunt writes to it. What he has seen must be there after every kill, and after the
hunt went on: programs with their answers, finds with what became of them, bugs with all of their files. Half of the
kills hit the hunt alone, half its workers as well.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from torchparity.hunting.store import FILE, NEW, SETTLED, Store

# Its own tracing is wrong often enough for a hunt of a minute, and no C++ is compiled.
BACKEND = "aot_eager"
FILES = {"program.py", "issue.md", "bug.json"}
STARTING, LONGEST, LAST = 300.0, 6.0, 40
TICK = 0.05

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Seen:
    """What has been seen in a store: answers of programs, what became of finds, files of bugs."""

    programs: dict[int, str] = field(default_factory=dict)
    finds: dict[int, tuple[str, str]] = field(default_factory=dict)
    bugs: dict[str, set[str]] = field(default_factory=dict)

    def lost(self, now: Seen) -> list[str]:
        """Return what was there and is not, or not as it was."""
        return [
            *(f"program {seed}" for seed in changed(self.programs, now.programs)),
            *(f"find {seed}" for seed in changed(settled(self.finds), settled(now.finds))),
            *(f"find {seed}" for seed in self.finds if seed not in now.finds),
            *(f"bug {name}" for name, files in self.bugs.items() if not files <= now.bugs.get(name, set())),
        ]


def settled(finds: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """Return the finds of which it is known what they are."""
    return {seed: found for seed, found in finds.items() if found[0] != NEW}


def changed(before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """Return what does not have the value that it had."""
    return [key for key, value in before.items() if now.get(key) != value]


def look(folder: Path) -> Seen:
    """Return what stands in a store, as somebody else reads it; nothing where there is none yet."""
    place = folder / FILE
    if not place.is_file():
        return Seen()
    connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=30.0)
    try:
        programs = dict(connection.execute("select seed, status from programs").fetchall())
        finds = {seed: (state, bug) for seed, state, bug in connection.execute("select seed, state, bug from finds")}
        names = [name for (name,) in connection.execute("select name from bugs").fetchall()]
    except sqlite3.OperationalError:
        return Seen()  # Its tables are being made.
    finally:
        connection.close()
    bugs = {name: {file.name for file in (folder / "bugs" / name).glob("*") if file.stat().st_size} for name in names}
    return Seen(programs=programs, finds=finds, bugs=bugs)


def hunting(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Begin a hunt, or go on with it."""
    where = ["--resume" if (folder / FILE).is_file() else "--out", str(folder)]
    command = [sys.executable, "-m", "torchparity", "hunt", *where, "--backend", BACKEND, "--no-operators", "-q", *more]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def killed(folder: Path, dice: random.Random) -> Seen:
    """Let a hunt go on until it has stored something, and kill it soon after; return what was seen before."""
    before, hunt = len(look(folder).programs), hunting(folder, "--minutes", "600")
    alone, started, end = dice.random() < 0.5, time.monotonic(), None
    seen = Seen()
    while end is None or time.monotonic() < end:
        seen = look(folder)
        if hunt.poll() is not None:
            raise SystemExit(f"the hunt ended by itself, with exit code {hunt.returncode}")
        if end is None and len(seen.programs) > before:
            end = time.monotonic() + dice.random() * LONGEST
        if end is None and time.monotonic() - started > STARTING:
            raise SystemExit(f"the hunt judged nothing in {STARTING:.0f} s")
        time.sleep(TICK)
    (os.kill if alone else os.killpg)(hunt.pid, signal.SIGKILL)
    hunt.wait()
    return seen


def wrong_in(folder: Path) -> list[str]:
    """Return what does not fit together in a store whose hunt has ended by itself."""
    now, store = look(folder), Store(folder)
    found = [f"program {seed} was never judged" for seed in store.missing_seeds(0)]
    differing = {seed for seed, status in now.programs.items() if status == "differs"}
    found += [f"program {seed} differs, and is no find" for seed in differing - set(now.finds)]
    found += [f"find {seed} is no program that differs" for seed in set(now.finds) - differing]
    found += [f"bug {name} lacks files" for name, files in now.bugs.items() if not files >= FILES]
    bugs = {bug for state, bug in now.finds.values() if state == SETTLED}
    found += [f"bug {name} is not there" for name in bugs - set(now.bugs)]
    with sqlite3.connect(folder / FILE) as connection:
        found += [] if connection.execute("pragma integrity_check").fetchone()[0] == "ok" else ["the file is damaged"]
    return found


def kill_often(folder: Path, times: int, dice: random.Random, console: Console | None = None) -> list[str]:
    """Kill a hunt so often, let it come to its end, and return all that was lost, or is wrong."""
    wrong: list[str] = []
    for number in range(1, times + 1):
        seen = killed(folder, dice)
        lost = [f"kill {number}: {what} is lost" for what in seen.lost(look(folder))]
        wrong += lost
        if console is not None:
            told = f"{len(seen.programs)} programs, {len(seen.finds)} finds, {len(seen.bugs)} bugs"
            console.print(f"kill {number}: {told}, {len(lost)} lost")
    last = look(folder)
    missing = len(Store(folder).missing_seeds(0))
    hunt = hunting(folder, "--programs", str(missing + LAST))
    hunt.wait()
    now = look(folder)
    wrong += [] if hunt.returncode in (0, 1) else [f"the last hunt ends with exit code {hunt.returncode}"]
    wrong += [f"afterwards: {what} is lost" for what in last.lost(now)]
    wrong += [] if len(now.programs) == len(last.programs) + missing + LAST else ["programs were judged twice"]
    return wrong + wrong_in(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="how often it is killed")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    arguments = parser.parse_args()
    console = Console(width=150)
    with tempfile.TemporaryDirectory(prefix="torchparity-kills-") as place:
        folder = Path(place) / "finds"
        wrong = kill_often(folder, arguments.times, random.Random(arguments.seed), console)
        end = look(folder)
    for line in wrong:
        console.print(line)
    told = f"{len(end.programs)} programs, {len(end.finds)} finds, {len(end.bugs)} bugs"
    console.print(f"{arguments.times} kills: {told}; {len(wrong)} lost or wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
