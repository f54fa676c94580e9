"""The kernels that inductor makes of a bundle: their names, what is in them, and the user's source lines of it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity import torchapi
from torchparity.errors import TorchVersionError
from torchparity.records import Kernel
from torchparity.repro.looking import GRAPH, INPUTS, SCRIPT
from torchparity.repro.names import frame_text, line_of

# Where a graph is printed, the user's line stands above what comes from it.
ORIGIN = re.compile(r"\s*# File: (.+):(\d+) in (\S+), code: (.*)")
EAGERS = ("extern_kernels.", "torch.ops.", "aten.")
ASSIGNED = re.compile(r'\s+\w+(: "[^"]*")? = ')
FRAME = re.compile(r"(.+):(\d+) in (\S+?)(?:: .*)?")


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A kernel, the nodes of inductor's graph that it computes, and the user's line of each, where one is known."""

    name: str
    nodes: tuple[tuple[str, str], ...]

    def of(self, names: Collection[str]) -> Kernel | None:
        """Return it with the lines of some nodes in it; nothing where it computes none of these."""
        lines = [line for name, line in self.nodes if name in names]
        return Kernel(name=self.name, lines=tuple(dict.fromkeys(filter(None, lines)))) if lines else None


@contextlib.contextmanager
def writing_kernels(place: Path, bundle: Path, nodes: Sequence[str]) -> Iterator[None]:
    """Write every kernel that is made for a bundle to a file, a line each, as it is made: a crash loses none.

    `nodes` are the user's lines of the operations in the bundle's graph, in order.
    """
    script = (bundle / SCRIPT).resolve()
    lines = users_lines(script.read_text(encoding="utf-8"), nodes) if script.is_file() else {}

    def users(line: str) -> str:
        frame = FRAME.fullmatch(line)
        ours = frame is not None and Path(frame[1]).resolve() == script
        return lines.get(int(frame[2]), "") if frame is not None and ours else line

    def hear(name: str, parts: list[Any]) -> None:
        file.write(json.dumps([name, [(part.name, users(line_of(part))) for part in parts]]) + "\n")

    with place.open("w", encoding="utf-8", buffering=1) as file, contextlib.ExitStack() as stack:
        with contextlib.suppress(TorchVersionError):
            stack.enter_context(torchapi.inductor.heard_kernels(hear))
        yield


def read_kernels(place: Path) -> list[Generated]:
    """Return the kernels that were written to a file."""
    told = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()] if place.is_file() else []
    return [Generated(name=name, nodes=tuple((node, line) for node, line in nodes)) for name, nodes in told]


def kernels_of(made: Collection[Generated], names: Collection[str]) -> tuple[Kernel, ...]:
    """Return the kernels that compute any of some nodes; where no node is known, the only kernel that there is.

    Eager's own kernels, which are called as they are, are named where no other is.
    """
    if not names and len({kernel.name for kernel in made}) == 1:
        names = {name for kernel in made for name, _ in kernel.nodes}
    lines: dict[str, dict[str, None]] = {}
    for kernel in filter(None, (one.of(names) for one in made)):
        lines.setdefault(kernel.name, {}).update(dict.fromkeys(kernel.lines))
    written = [name for name in lines if not name.startswith(EAGERS)] or list(lines)
    return tuple(Kernel(name=name, lines=tuple(lines[name])) for name in written)


def users_lines(source: str, nodes: Sequence[str]) -> dict[int, str]:
    """Return the user's line for every line of a bundle's script that an operation is printed on, by its number.

    It is known for the operations in order, where each of them is an assignment; else it stands above them.
    """
    before, _, after = source.partition(f"\n{GRAPH}")
    graph = list(enumerate(after.partition(f"\n{INPUTS}")[0].split("\n"), start=before.count("\n") + 2))
    graph = [(number, line) for number, line in graph if line.strip()]
    assigned = [number for number, line in graph if ASSIGNED.match(line)]
    if len(assigned) == len(nodes):
        return dict(zip(assigned, nodes, strict=True))
    found, above = {}, ""
    for number, line in graph:
        origin = ORIGIN.fullmatch(line)
        above = frame_text(*origin.groups()) if origin is not None else above
        found[number] = above
    return found
