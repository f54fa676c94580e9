"""The tree of a program: printed, measured, and changed at one place."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

BODIES = ("body", "orelse", "finalbody")
Path = list[tuple[str, int | None]]


def parsed(text: str) -> ast.Module:
    """Return the tree of a program."""
    return ast.parse(text)


def printed(tree: ast.Module) -> str:
    """Return a program's text in one form, whatever comments and blanks it was written with."""
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def size(text: str) -> tuple[int, int, int, str]:
    """Return the place of a program in the total order: operations and statements first, then text, then its letters.

    An operation is a call, a sign or a subscript.
    """
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    work = sum(isinstance(node, ast.stmt | ast.Call | ast.BinOp | ast.UnaryOp | ast.Subscript) for node in nodes)
    weight = sum(len(repr(node.value)) for node in nodes if isinstance(node, ast.Constant))
    return work, len(nodes), weight + len(text), text


def changed(
    tree: ast.Module, path: list[tuple[str, int | None]], change: Callable[[Any, str, int | None], None]
) -> Any:
    """Return a copy of a tree in which the field at the end of a path was changed."""
    fresh = copy.deepcopy(tree)
    holder: Any = fresh
    for name, place in path[:-1]:
        holder = getattr(holder, name)
        holder = holder if place is None else holder[place]
    change(holder, *path[-1])
    return fresh


def paths(node: ast.AST, before: tuple[tuple[str, int | None], ...] = ()) -> Iterator[tuple[Any, list[Any]]]:
    """Yield every node below one with its path, the outer ones first."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            path = (*before, (name, None))
            yield value, list(path)
            yield from paths(value, path)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.AST):
                    path = (*before, (name, place))
                    yield item, list(path)
                    yield from paths(item, path)


def put(holder: Any, name: str, place: int | None, new: Any) -> None:
    """Put something else into a field, or at a place in it."""
    if place is None:
        setattr(holder, name, new)
    else:
        getattr(holder, name)[place] = new


def at(tree: Any, path: list[Any]) -> Any:
    """Return what lies at the end of a path."""
    for name, place in path:
        tree = getattr(tree, name)
        tree = tree if place is None else tree[place]
    return tree


def is_torch(node: ast.expr) -> bool:
    """Tell whether a name is that of a module, which is no value."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("torch", "nn", "F", "math", "np", "numpy")


def replaced(tree: ast.Module, path: list[Any], new: ast.AST) -> ast.Module:
    """Return a copy of a tree with something else at the end of a path."""
    fresh: ast.Module = changed(tree, path, lambda holder, name, place: put(holder, name, place, copy.deepcopy(new)))
    return fresh
