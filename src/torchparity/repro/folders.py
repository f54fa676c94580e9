"""Folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from torchparity.errors import BundleError


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
