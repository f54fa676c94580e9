"""`since`: which release of torch broke a script."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from torchparity.errors import UsageError
from torchparity.records import Progress, ProgressCallback, Since
from torchparity.releases.environments import known_series
from torchparity.releases.since import Question, ask_all
from torchparity.releases.versions import read_releases
from torchparity.report.machine import write_data
from torchparity.report.releases import since_data

# So many series are asked where none is named.
SERIES = 5
RUN_SECONDS = 300.0


def since(
    script: str | Path,
    *,
    torch: Sequence[str] = (),
    python: Sequence[str | Path] = (),
    timeout: float = RUN_SECONDS,
    error: str | None = None,
    pip_options: Sequence[str] = (),
    out: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Since:
    """Run a script in environments of released versions of torch; return what it says in each, and since when it fails.

    The script exits with 0 where it works and with 1 where it fails; a crash is a failure too, all else no answer.
    `torch` are releases: 2.9 is the newest 2.9, 2.9.1 exactly this one; by default the last five series that pip knows.
    `python` are interpreters that have a torch already. An environment is made once and kept (TORCHPARITY_CACHE).
    `error` names the failure that is meant (`AssertionError`, `SIGSEGV`); by default that of the newest release that
    fails. With `out`, every answer is written there as it comes.
    """
    path = Path(script)
    if not path.is_file():
        inside = f"name its script: {path / 'repro.py'}" if path.is_dir() else "name a file that Python can run"
        raise UsageError(f"{script} is no script", hint=inside)
    if not timeout > 0:
        raise UsageError(f"a timeout of {timeout:g} s leaves nothing", hint="give a positive number of seconds")
    options = tuple(pip_options)
    wanted = read_releases(torch)
    if not wanted and not python:
        wanted = known_series(SERIES, options=options)
    pythons = tuple(dict.fromkeys(interpreter(entry) for entry in python))

    def listen(number: int, doing: str) -> None:
        if progress is not None:
            progress(Progress(run=number, runs=len(wanted) + len(pythons), name=doing))

    question = Question(script=path, seconds=timeout, error=error, options=options)
    found = Since(script=str(path), answers=())
    for found in ask_all(question, wanted, pythons, listen=listen):
        if out is not None:
            write_data(since_data(found), Path(out))
    return found


def interpreter(named: str | Path) -> str:
    """Return the path of an interpreter that is named as a shell would, or by its path; its links are not followed."""
    path = Path(named).expanduser()
    return str(Path(shutil.which(str(path)) or path).absolute())
