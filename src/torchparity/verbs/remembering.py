"""What a check in another process had compiled, remembered for the same check of the same code.

Compilers remember what they made of a graph, wherever the graph comes from: somebody who patches a compiler in his
model's file would get what the compiler made without the patch. So nothing is shared between checks whose code, request
or environment differ in anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchparity import torchapi

FOLDER = "torchparity-checks"
# Folders that are kept, and the seconds since its last use before one may go.
KEPT = 16
IDLE_SECONDS = 3600.0
# Variables that say where a process was started, and nothing of what it does.
PLACES = frozenset("_ COLUMNS HOSTNAME LINES OLDPWD PWD PYTEST_CURRENT_TEST SHLVL TERM TORCHPARITY_POOL".split())
FOLDERS = frozenset(("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"))


def home_of_checks() -> str | None:
    """Return where the user's compilers remember things; None where he has told them not to."""
    if os.environ.get("TORCHINDUCTOR_FX_GRAPH_CACHE") == "0":
        return None
    return os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")


@contextlib.contextmanager
def remembering(home: str | None, asked: Mapping[str, Any]) -> Iterator[None]:
    """Let compilers use what they made when the same was asked of the same code, and remember what they make."""
    if home is None:
        yield
        return
    base = Path(home or torchapi.default_cache_folder()) / FOLDER
    folder = base / code_digest(asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:  # Without it, everything is compiled: slower, not wrong.
        yield
        return
    with torchapi.remembering_graphs(folder):
        yield
    forget_old(base)


def code_digest(asked: Mapping[str, Any]) -> str:
    """Return a digest of what was asked, of the environment, and of all code here that was not installed."""
    environment = {name: value for name, value in os.environ.items() if name not in PLACES | FOLDERS}
    found = hashlib.sha256(json.dumps([asked, environment], sort_keys=True, default=str).encode())
    for path in sorted(own_files()):
        with contextlib.suppress(OSError):
            found.update(path.encode() + Path(path).read_bytes())
    return found.hexdigest()[:32]


def own_files() -> set[str]:
    """Return the files of modules that were not installed: the user's own, and those somebody is working on."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed = (*(f"{place}{os.sep}" for place in places), f"{Path(torch.__file__).parent}{os.sep}")
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str) and not file.startswith(installed)}


def forget_old(base: Path) -> None:
    """Remove what has not been used for the longest time."""
    with contextlib.suppress(OSError):
        by_use = sorted((folder.stat().st_mtime, folder) for folder in base.iterdir())
        for used, folder in by_use[:-KEPT]:
            if time.time() - used > IDLE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
