"""Interpreters that are none: small programs that say a version of torch, and then end in their own way."""

from __future__ import annotations

import zipfile
from pathlib import Path

WORKS = "exit 0"
ASSERTS = "echo 'Traceback (most recent call last):'; echo '  File x'; echo 'AssertionError: 2 is not 3'; exit 1"
RAISES = "echo 'Traceback (most recent call last):'; echo '  File x'; echo 'torch.exc.InductorError: no'; exit 1"
LACKS = "echo 'Traceback (most recent call last):'; echo '  File x'; echo 'ImportError: no name'; exit 1"
CRASHES = "kill -SEGV $$"
KILLED = "kill -KILL $$"
SAYS_NEITHER = "echo 'UNKNOWN: nothing was compiled'; exit 125"


def interpreter(folder: Path, version: str, action: str) -> str:
    """Return the path of an interpreter with a version of torch, whose every script does this."""
    path = folder / f"python-{version}"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo "torch {version}"; exit 0; fi\n{action}\n')
    path.chmod(0o755)
    return str(path)


def wheel(folder: Path, name: str, version: str, source: str = "") -> None:
    """Write a wheel of a package that is one line of source."""
    facts = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n{source}",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{facts}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{facts}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
