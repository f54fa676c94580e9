"""Folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from torchparity.errors import BundleError, UsageError

try:
    import fcntl
except ImportError:  # Windows keeps no such locks; there nobody is kept out.
    fcntl = None  # type: ignore[assignment]

# Who works in a folder holds this file of it: `hunt.lock`.
LOCK = "{}.lock"
# What a folder may hold that was to become a bundle, or that made way for one.
ON_THE_WAY = {"repro.py", "tensors.safetensors", "case.json", "old", "other"}


@contextlib.contextmanager
def replacing(folder: Path, *, kept_unless: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a hidden folder beside the one that is meant; at the end it takes its name, or leaves no trace.

    What stands there already makes way where `kept_unless` says so, also where another process has just put it there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        if folder.exists() and not kept_unless(folder):
            raise BundleError(f"{folder} is not a bundle, and is not empty", hint="choose another folder to write to")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(aside / "old")
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            folder.rename(aside / "other")
            partial.rename(folder)
    except BaseException:
        if not folder.exists() and (aside / "old").exists():
            (aside / "old").rename(folder)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def alone_in(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder, or refuse: two that go on in one would each take what is the other's. A kill lets go.

    A folder that was made for it goes again where nothing came into it.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK.format(what)).open("w") as lock:
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"another {what} is running in {folder}", hint="wait for it, stop it, or give another folder"
            ) from error
        try:
            yield
        finally:
            if made and len(list(folder.iterdir())) == 1:
                shutil.rmtree(folder)


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
    """Remove what a kill has left of bundles of these names that were being written, and nothing else of anybody's."""
    partial = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.[a-z0-9_]{{8}}")
    for leftover in folder.iterdir():
        if not partial.fullmatch(leftover.name) or leftover.is_symlink() or not leftover.is_dir():
            continue
        inside = {entry.name for entry in leftover.iterdir()}
        if inside <= ON_THE_WAY or "case.json" in inside:
            shutil.rmtree(leftover, ignore_errors=True)
