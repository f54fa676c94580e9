"""What inductor asks its C++ compiler for, handed to somebody else who may build several kernels in one run of it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity.torchapi.door import lookup

# How the file of a kernel with its Python bindings ends, and the function in it that Python looks for.
KERNEL_FILE, KERNEL_MODULE = ".main.cpp", "PyInit_kernel("
# What says which precompiled header a kernel takes, and makes it where there is none.
FINDS_HEADER = "torch._inductor.codecache._precompile_header"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One kernel to be built: its source, what is to be made of it, and how: everything else in the command."""

    source: str
    target: str
    compiler: str
    arguments: tuple[str, ...]

    def command(self, source: str, target: str) -> list[str]:
        """Return the command that builds another source in this way."""
        return [self.compiler, source, *self.arguments, "-o", target]


def build_of(command: str, target: str) -> Build | None:
    """Return what a command builds; None where it is no kernel with its bindings, for which nothing else is needed."""
    compiler, *words = shlex.split(command)
    sources = [word for word in words if word.endswith(KERNEL_FILE)]
    places = [place for place, word in enumerate(words) if word == "-o"]
    if len(sources) != 1 or len(places) != 1 or "-shared" not in words:
        return None
    if KERNEL_MODULE not in Path(sources[0]).read_text(encoding="utf-8"):
        return None
    rest = words[: places[0]] + words[places[0] + 2 :]
    rest.remove(sources[0])
    return Build(source=sources[0], target=target, compiler=compiler, arguments=tuple(rest))


def remember_headers(folder: Path) -> None:
    """Have whoever compiles here, and in forks of here, share what they find out of inductor's precompiled headers.

    Which of them a kernel takes is found out by a run of the C++ compiler, 0.3 s in every process: inductor
    sees to it that no file has changed. While a folder is in use, none does.
    """
    original = lookup(FINDS_HEADER)

    @functools.wraps(original)
    def known(*words: Any, **options: Any) -> Any:
        asked = repr((words, sorted(options.items())))
        answer = folder / hashlib.sha256(asked.encode()).hexdigest()
        with contextlib.suppress(OSError):
            header = answer.read_text(encoding="utf-8")
            if Path(header).is_file():
                return header
        found = original(*words, **options)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            partial = answer.with_suffix(f".{os.getpid()}")
            partial.write_text(found, encoding="utf-8")
            partial.replace(answer)
        return found

    module, _, name = FINDS_HEADER.rpartition(".")
    setattr(lookup(module), name, known)


@contextlib.contextmanager
def built_by(ask: Callable[[Build], bool]) -> Iterator[None]:
    """Let somebody else build inductor's kernels; what they do not build is built here, as ever."""
    builder = lookup("torch._inductor.cpp_builder.CppBuilder")
    original = builder.build

    @functools.wraps(original)
    def build(self: Any) -> Any:
        target = str(Path(self.get_target_file_path()).absolute())
        wanted = build_of(self.get_command_line(), target)
        return None if wanted is not None and ask(wanted) else original(self)

    builder.build = build
    try:
        yield
    finally:
        builder.build = original
