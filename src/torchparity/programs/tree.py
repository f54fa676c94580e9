"""The tree of a program: printed, measured, and changed at one place."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

BODIES = ("body", "orelse", "finalbody")
# What makes a changed copy of a tree: nothing is copied before it is asked for.
Change = Callable[[], ast.Module]


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
    fresh = copy.deepcopy(tree)
    name, place = path[-1]
    put(at(fresh, path[:-1]), name, place, copy.deepcopy(new))
    return fresh


def spliced(tree: ast.Module, path: list[Any], statements: list[ast.stmt]) -> ast.Module:
    """Return a copy of a tree with statements in the place of one."""
    fresh = copy.deepcopy(tree)
    name, place = path[-1]
    getattr(at(fresh, path[:-1]), name)[place : place + 1] = copy.deepcopy(statements)
    return fresh


def functions(tree: ast.Module) -> list[tuple[ast.FunctionDef, list[Any]]]:
    """Return every function with its path."""
    return [(node, path) for node, path in paths(tree) if isinstance(node, ast.FunctionDef)]


def names_read(node: ast.AST) -> set[str]:
    """Return the names that are read somewhere below a node."""
    return {
        found.id for found in ast.walk(node) if isinstance(found, ast.Name) and not isinstance(found.ctx, ast.Store)
    }


def renamed(around: Any, name: str, value: ast.expr) -> None:
    """Put a value in the place of a name, wherever it is read."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> Any:
            return copy.deepcopy(value) if node.id == name and isinstance(node.ctx, ast.Load) else node

    Replace().visit(around)
