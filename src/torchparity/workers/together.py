"""Kernels of many programs, built in one run of the C++ compiler.

Of the second that the compiler takes for a small kernel, nine tenths are the same for every kernel: reading what it
includes, and what it says at the end. Programs that wait for it at the same time are served together.
"""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchparity.torchapi import Build
from torchparity.workers.desk import Caller, Desk, Hung, Reply

# Kernels of one run, and how long it may take; a kernel that takes longer is its own program's to wait for.
MOST = 16
SECONDS = 90.0
INCLUDED = re.compile(r"^\s*#\s*include\s.*$", re.MULTILINE)
NAMES = ("kernel", "PyInit_kernel")
# Python asks a library for the one function `PyInit_kernel`: the file that it has been loaded from says whose it is.
CHOOSING = """
#include <cstring>
#include <dlfcn.h>
PyMODINIT_FUNC PyInit_kernel(void) {{
    Dl_info here;
    if (!dladdr(reinterpret_cast<void*>(&PyInit_kernel), &here)) {{
        PyErr_SetString(PyExc_ImportError, "nobody knows which file this is");
        return nullptr;
    }}
    const char* slash = std::strrchr(here.dli_fname, '/');
    const char* name = slash ? slash + 1 : here.dli_fname;
{choices}
    PyErr_SetString(PyExc_ImportError, "this file has another kernel's name");
    return nullptr;
}}
"""


class Together:
    """Builds what workers ask for: whatever has come in while the compiler was busy is built by its next run."""

    def __init__(self, builders: int = 1) -> None:
        self.desk = Desk(self._hear)
        self.folder = Path(tempfile.mkdtemp(prefix="torchparity-"))
        self._waiting: collections.deque[tuple[Build, Reply]] = collections.deque()
        self._more = threading.Condition()
        self._over = False
        self._running: set[subprocess.Popen[bytes]] = set()
        self._threads = [
            threading.Thread(target=self._go_on, args=(number,), name=f"torchparity-builder-{number}", daemon=True)
            for number in range(builders)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        """Where workers ask."""
        return self.desk.address

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *error: object) -> None:
        with self._more:
            self._over = True
            self._more.notify_all()
            for process in self._running:
                process.kill()
        for thread in self._threads:
            thread.join()
        self.desk.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hear(self, question: Mapping[str, Any], reply: Reply) -> None:
        build = Build(**{**question, "arguments": tuple(question["arguments"])})
        with self._more:
            self._waiting.append((build, reply))
            self._more.notify()

    def _go_on(self, number: int) -> None:
        while wanted := self._next():
            built = self._built([build for build, _ in wanted], self.folder / str(number))
            for build, reply in wanted:
                reply({"built": build.target in built})

    def _next(self) -> list[tuple[Build, Reply]]:
        """Wait for somebody, and return all who want their kernels built in the same way; none where it is over."""
        with self._more:
            self._more.wait_for(lambda: self._over or self._waiting)
            if self._over:
                return []
            first = self._waiting[0][0]
            taken = [
                entry
                for entry in self._waiting
                if (entry[0].compiler, entry[0].arguments) == (first.compiler, first.arguments)
            ][:MOST]
            self._waiting = collections.deque(entry for entry in self._waiting if entry not in taken)
            return taken

    def _built(self, builds: Sequence[Build], folder: Path) -> set[str]:
        """Build all of them, or each half where that does not work; return the targets that are there."""
        if self._run(builds, folder):
            return {build.target for build in builds}
        if len(builds) == 1 or self._over:
            return set()
        half = len(builds) // 2
        return self._built(builds[:half], folder) | self._built(builds[half:], folder)

    def _run(self, builds: Sequence[Build], folder: Path) -> bool:
        folder.mkdir(exist_ok=True)
        source, made = folder / "together.cpp", folder / "together.so"
        try:
            source.write_text(together(builds), encoding="utf-8")
            if not self._compiles(builds[0].command(str(source), str(made)), folder):
                return False
            for build in builds:
                partial = f"{build.target}.partial"
                shutil.copy(made, partial)  # No link: a library that is there twice is loaded once.
                Path(partial).replace(build.target)
        except OSError:
            return False
        return True

    def _compiles(self, command: list[str], folder: Path) -> bool:
        with self._more:
            if self._over:
                return False
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._running.add(process)
        try:
            return process.wait(SECONDS) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        finally:
            with self._more:
                self._running.discard(process)


def together(builds: Sequence[Build]) -> str:
    """Return one source with the kernels of several: each in a namespace, under names of its own."""
    texts = [Path(build.source).read_text(encoding="utf-8") for build in builds]
    included = dict.fromkeys(line.strip() for text in texts for line in INCLUDED.findall(text))
    lines = ["#define PY_SSIZE_T_CLEAN", *included, "#include <Python.h>"]
    choices = []
    for number, build in enumerate(builds):
        lines += [f"#define {name} {name}_{number}" for name in NAMES]
        # What it includes has been included by now, outside of any namespace.
        lines += [f"namespace together_{number} {{", f'#include "{build.source}"', "}"]
        lines += [f"#undef {name}" for name in NAMES]
        call = f"together_{number}::PyInit_kernel_{number}()"
        choices.append(f'    if (!std::strcmp(name, "{Path(build.target).name}")) return {call};')
    return "\n".join(lines) + CHOOSING.format(choices="\n".join(choices))


def asking(address: str) -> Callable[[Build], bool]:
    """Return what has a kernel built by whoever is at a desk; nothing is built by somebody who has gone."""
    try:
        caller = Caller(address)
    except OSError:
        return lambda build: False

    def ask(build: Build) -> bool:
        try:
            return bool(caller.ask(asdict(build)).result()["built"])
        except Hung:
            return False

    return ask
