"""The whole `repro.py` of a case: what it runs, and the judge, printed from our own source."""

from __future__ import annotations

from pathlib import Path

from torchparity.repro.bundle import store
from torchparity.repro.case import Case
from torchparity.repro.script import JUDGE, enclosed, print_runtime, rule, upper_half


def prepare() -> None:
    """Print what every script holds, so that the first one needs not wait for it."""
    print_judge()
    print_runtime()


def print_judge() -> str:
    """Return the judge as a script holds it."""
    return enclosed("judge", "torchparity.judge.standalone", ("main",))


def write_script(case: Case) -> str:
    """Return the text of `repro.py`."""
    end = 'if __name__ == "__main__":\n    raise SystemExit(judge()(globals()))\n'
    return f"{upper_half(case)}\n\n{rule(JUDGE)}\n\n{print_judge()}\n\n{end}"


def write_bundle(case: Case, folder: Path) -> Path:
    """Write a case as a folder, whole or not at all; return the folder. The same case gives the same bytes."""
    return store(case, write_script(case), Path(folder))
