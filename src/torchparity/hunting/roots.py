"""One bug, once: what tells a root cause from another, and which are known upstream."""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError
from torchparity.hunting.store import Bug
from torchparity.records import Blame, Kind

NUMBERS = "numbers"
WRONG_NUMBERS = (Kind.VALUE.value, Kind.BIAS.value, Kind.INTEGER.value, Kind.MUTATION.value)
KNOWN = Path(__file__).with_name("known.toml")
# Names in a program that say nothing about a bug.
PLAIN = {
    "torch",
    "nn",
    "functional",
    "program",
    "make",
    "view",
    "to",
    "requires_grad_",
    "ones",
    "arange",
    "zeros",
    "tensor",
}


@dataclass(frozen=True, kw_only=True)
class Known:
    """A bug that is known: how it is recognised, its number upstream, and since when."""

    kind: str
    stage: str
    part: str
    calls: tuple[str, ...]
    number: str
    title: str = ""
    since: str = ""

    def covers(self, bug: Bug) -> bool:
        """Tell whether a bug is this one."""
        matches = all(
            fnmatch.fnmatchcase(value, pattern or "*")
            for value, pattern in ((bug.kind, self.kind), (bug.stage, self.stage), (bug.part, self.part))
        )
        return matches and set(self.calls) <= set(calls_in(bug.text))


def read_known(place: Path = KNOWN) -> list[Known]:
    """Read a list of known bugs."""
    try:
        table = tomllib.loads(place.read_text(encoding="utf-8"))
        return [
            Known(
                kind=entry.get("kind", ""), stage=entry.get("stage", ""), part=entry.get("part", ""),
                calls=tuple(entry.get("calls", ())), number=str(entry["number"]), title=entry.get("title", ""),
                since=str(entry.get("since", "")),
            )
            for entry in table.get("bug", [])
        ]  # fmt: skip
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UsageError(
            f"{place} is no list of known bugs: {type(error).__name__}: {error}",
            hint="each is a [[bug]] with `number`, and any of kind, stage, part, calls, title, since",
        ) from error


def calls_in(text: str) -> list[str]:
    """Return the operations of a program by name, in alphabetical order."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.BinOp | ast.UnaryOp):
            found.add(type(node.op).__name__.lower())
        elif isinstance(node, ast.Subscript):
            found.add("slice" if isinstance(node.slice, ast.Slice) else "index")
        elif isinstance(node, ast.AugAssign | ast.Assign) and any(
            isinstance(target, ast.Subscript) for target in getattr(node, "targets", [getattr(node, "target", None)])
        ):
            found.add("setitem")
    return sorted(
        name for name in found if name not in PLAIN and not name.startswith(("float", "int", "uint", "bfloat"))
    )


@functools.lru_cache(maxsize=10_000)
def program_calls(text: str) -> tuple[str, ...]:
    """Return the operations of the function alone, not those that make its inputs."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == "make")]
    return tuple(calls_in(ast.unparse(tree)))


def root_of(kind: str, blame: Blame | None, text: str, signature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what two finds of one bug have in common: kind, stage, the part of the stage, what cures it."""
    if blame is None:
        return (kind, "unknown", str(signature.get("frame", "")) or " ".join(program_calls(text)))
    part = blame.part or str(signature.get("frame", "")) or " ".join(program_calls(text))
    return (kind, blame.stage, part, " ".join(sorted(blame.switch)))


def same_root(bug: Bug, root: Sequence[str]) -> bool:
    """Tell whether a root cause is that of a bug; wrong numbers are wrong numbers, in a float or an integer."""
    kind, *rest = (*root, "")[:4]
    return sort_of(bug.kind) == sort_of(kind) and [bug.stage, bug.part, " ".join(sorted(bug.switch))] == rest


def looks_like(bug: Bug, kind: str, calls: Collection[str]) -> bool:
    """Tell whether a find may be one more of a bug: numbers as wrong, and all operations of its smallest program."""
    return sort_of(bug.kind) == sort_of(kind) and set(program_calls(bug.text)) <= set(calls)


def sort_of(kind: str) -> str:
    """Return the sort of a kind of difference: by which dtype numbers are wrong tells no bug from another."""
    return NUMBERS if kind in WRONG_NUMBERS else kind


def name_of(root: Sequence[str], taken: Iterable[str]) -> str:
    """Return a name for a folder that says what the bug is."""
    words = re.sub(r"[^a-z0-9]+", "-", " ".join((root[1], root[2], root[0])).lower()).strip("-")[:60].strip("-")
    held = set(taken)
    name, number = words, 2
    while name in held:
        name, number = f"{words}-{number}", number + 1
    return name
