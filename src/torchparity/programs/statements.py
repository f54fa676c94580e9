"""Edits of statements: left out, or taken out of what is around them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

from torchparity.programs.tree import BODIES, at, changed, paths


def without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """`a; b; c` -> `c`: leave out runs of statements, long ones first, the last ones first. n log n questions."""
    lists = [([], "body")] + [(path, field) for node, path in paths(tree) for field in BODIES if _is_body(node, field)]
    sizes: list[tuple[int, list[Any], str, int]] = []
    for path, field in lists:
        count = len(getattr(at(tree, path), field))
        length = count
        while length:
            sizes += [(length, path, field, start) for start in range(count - length, -1, -length)]
            length //= 2
    for length, path, field, start in sorted(sizes, key=lambda entry: -entry[0]):
        fresh = copy.deepcopy(tree)
        statements = getattr(at(fresh, path), field)
        del statements[start : start + length]
        if not statements and field == "body" and path:
            statements.append(ast.Pass())
        yield fresh


def _is_body(node: Any, field: str) -> bool:
    value = getattr(node, field, None)
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt)


def unwrapped(tree: ast.Module) -> Iterator[ast.Module]:
    """`if x: a` -> `a`; also for, while, with and try. One question for each body."""
    for node, path in paths(tree):
        if not isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            continue
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, None)
            if not inner:
                continue
            first: list[ast.stmt] = []
            if isinstance(node, ast.For) and field == "body":
                item = ast.Call(ast.Name("next", ast.Load()), [_call("iter", node.iter)], [])
                first = [ast.Assign([node.target], item)]
            if isinstance(node, ast.With):
                first = [
                    ast.Assign([item.optional_vars], item.context_expr) for item in node.items if item.optional_vars
                ]
            for lead in [first, []] if first else [[]]:
                yield changed(tree, path, _spliced([*lead, *inner]))


def _spliced(statements: list[Any]) -> Callable[[Any, str, int | None], None]:
    def change(holder: Any, name: str, place: int | None) -> None:
        assert place is not None
        getattr(holder, name)[place : place + 1] = copy.deepcopy(statements)

    return change


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
