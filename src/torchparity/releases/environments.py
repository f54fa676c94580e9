"""Environments of released versions of torch: made once with venv and pip, kept side by side in a cache.

    CACHE/releases/2.9.1-cp311/                       one that is whole: it got its name when all was done
    CACHE/releases/.2.9-cp311.k3x9_a1b.partial/       one that is being made, or was when its maker was killed
    CACHE/releases/.2.9-cp311.lock                    held by who makes one of this series

A venv does not mind its new name as long as nobody calls the scripts in its `bin`: they name the old one, and
`bin/python` does not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from torchparity.errors import ResourceError
from torchparity.records import ReleaseEnvironment
from torchparity.records.wire import plain_data, record_from
from torchparity.releases.refusals import refusal, without_torch
from torchparity.releases.scripts import LEAVING_SECONDS, plain_environment, run_process, torch_of
from torchparity.releases.versions import meets, newest_series, order, requirement, series_of
from torchparity.workers.processes import kill_until_gone, marked, remove_folder

FACTS = "environment.json"
# The folder that a process installs into, in its environment.
MAKING = "TORCHPARITY_MAKING"
# Scripts that compare tensors want it, and torch does without it only with a warning.
BESIDES = ("numpy",)
PYTHON = ".".join(platform.python_version_tuple()[:2])
TAG = f"cp{PYTHON.replace('.', '')}"
PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check")
# A download of gigabytes may take its time.
MAKING_SECONDS = 3600.0
ASKING_SECONDS = 300.0
FULL = (errno.ENOSPC, errno.EDQUOT)

Tell = Callable[[str], None]


def cache_folder() -> Path:
    """Return where environments are kept: below TORCHPARITY_CACHE, or where this user's programs keep such things."""
    named = os.environ.get("TORCHPARITY_CACHE", "")
    if named:
        return Path(named).expanduser().absolute() / "releases"
    usual = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(usual) if Path(usual).is_absolute() else Path.home() / ".cache"
    return home / "torchparity" / "releases"


def environments(folder: Path) -> list[ReleaseEnvironment]:
    """Return every whole environment of a cache, the oldest release first; what cannot be read is none."""
    found = []
    for facts in folder.glob(f"[0-9]*/{FACTS}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            entry = record_from(ReleaseEnvironment, json.loads(facts.read_text(encoding="utf-8")))
            here = replace(entry, folder=str(facts.parent))
            if Path(here.interpreter).exists():  # Its link is broken where the Python that it was made with is gone.
                found.append(here)
    return sorted(found, key=lambda entry: (order(entry.torch), entry.folder))


def environment_for(
    asked: str, *, options: Sequence[str] = (), folder: Path | None = None, tell: Tell | None = None
) -> ReleaseEnvironment:
    """Return the environment of a release, made now where the cache has none; ResourceError where it cannot be made.

    A series, such as 2.9, is the newest of its releases that the cache holds, or else that pip finds.
    """
    cache, given = folder or cache_folder(), tuple(options)
    found = cached(cache, asked, given)
    if found is not None:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{key_of(asked, given)}.lock", tell):
            return cached(cache, asked, given) or make(asked, given, cache, tell)
    except OSError as error:
        told = "the disk is full" if error.errno in FULL else error.strerror or str(error)
        hint = "TORCHPARITY_CACHE names another folder for environments; they take 1 to 6 GB each"
        raise ResourceError(f"no environment can be made in {cache}: {told}", hint=hint) from error


def cached(folder: Path, asked: str, options: tuple[str, ...]) -> ReleaseEnvironment | None:
    """Return the newest environment of a cache that is what was asked for, made with this Python and these options."""
    made_so = [entry for entry in environments(folder) if (entry.python, entry.options) == (PYTHON, options)]
    fitting = [entry for entry in made_so if entry.asked == asked or meets(entry.torch, asked)]
    return fitting[-1] if fitting else None


def key_of(asked: str, options: tuple[str, ...]) -> str:
    """Return what two makers must not make at once: a series, for one Python and with one set of options."""
    return f"{series_of(asked)}-{TAG}{suffix_of(options)}"


def suffix_of(options: tuple[str, ...]) -> str:
    """Return what a folder's name says of pip's options."""
    return f"-{hashlib.sha256(json.dumps(options).encode()).hexdigest()[:8]}" if options else ""


@contextlib.contextmanager
def locked(path: Path, tell: Tell | None) -> Iterator[None]:
    """Hold a lock that the system takes back when this process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tell is not None:
                tell("waiting for another process that makes its environment")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(asked: str, options: tuple[str, ...], cache: Path, tell: Tell | None) -> ReleaseEnvironment:
    """Make an environment beside its place and give it its name when it is whole; the lock is held by the caller."""
    if tell is not None:
        tell("making its environment")
    key = key_of(asked, options)
    for leftover in cache.glob(f".{key}.*.partial"):  # We hold the lock: whoever made it is gone, its pip may not be.
        kill_until_gone(lambda folder=str(leftover): marked(MAKING, folder), seconds=LEAVING_SECONDS)  # type: ignore[misc]
        remove_folder(leftover)
    partial = Path(tempfile.mkdtemp(prefix=f".{key}.", suffix=".partial", dir=cache))
    try:
        version = installed(asked, options, partial)
        place = cache / f"{version}-{TAG}{suffix_of(options)}"
        entry = ReleaseEnvironment(
            asked=asked,
            torch=version,
            python=PYTHON,
            folder=str(place),
            options=options,
            size=size_of(partial),
            made=f"{datetime.now():%Y-%m-%d %H:%M}",
        )
        (partial / FACTS).write_text(json.dumps(plain_data(entry), indent=2) + "\n", encoding="utf-8")
        remove_folder(place)  # What stands there was not whole, or we would have taken it.
        partial.rename(place)
    finally:
        remove_folder(partial)
    return entry


def installed(asked: str, options: tuple[str, ...], folder: Path) -> str:
    """Make a venv with a release of torch in a folder; return the version that it imports."""
    python = str(folder / "bin" / "python")
    if importlib.util.find_spec("pip") is not None:  # Ours installs into any environment; one of its own takes 5 s.
        venv, pip = ["--without-pip"], [sys.executable, *PIP, "--python", python]
    else:
        venv, pip = [], [python, *PIP]
    steps = (
        [sys.executable, "-m", "venv", *venv, str(folder)],
        [*pip, "install", "--progress-bar", "off", *options, requirement(asked), *BESIDES],
    )
    for command in steps:
        environment = plain_environment(**{MAKING: str(folder)})
        ended = run_process(command, seconds=MAKING_SECONDS, environment=environment)
        if ended.exit_code:
            raise refusal(asked, ended, seconds=MAKING_SECONDS)
    version, ended = torch_of(python, seconds=ASKING_SECONDS)
    if not version:
        raise without_torch(f"torch {asked} was installed", ended)
    return version


def size_of(folder: Path) -> int:
    """Return how many bytes the files of a folder take."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


def known_series(count: int, *, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the newest series of torch that pip knows for this Python, the oldest of them first."""
    command = [sys.executable, *PIP, "index", "versions", *options, "torch"]
    ended = run_process(command, seconds=ASKING_SECONDS, environment=plain_environment())
    line = next((line for line in ended.output.splitlines() if line.startswith("Available versions:")), "")
    found = newest_series([word.strip() for word in line.partition(":")[2].split(",")], count)
    if not found:
        raise ResourceError("pip does not say which releases of torch there are", hint="name them: --torch 2.12 2.13")
    return found
