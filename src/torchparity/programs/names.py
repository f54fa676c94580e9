"""Edits of names: values in the place of names, parameters that go, bodies in the place of calls."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

from torchparity.programs.tree import at, paths, replaced


def inlined(tree: ast.Module) -> Iterator[ast.Module]:
    """`b = f(a); return g(b)` -> `return g(f(a))`: put a value in the place of its name. One question for each name."""
    for node, path in paths(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        function, inside = _function_around(tree, path)
        uses = Counter(
            found.id for found in ast.walk(function) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)
        )
        stores = sum(isinstance(found, ast.Name) and found.id == name and isinstance(found.ctx, ast.Store)
                     for found in ast.walk(function))  # fmt: skip
        if stores != 1 or (uses[name] != 1 and not isinstance(node.value, ast.Name | ast.Constant)):
            continue
        fresh = copy.deepcopy(tree)
        around = at(fresh, inside)
        statement = at(fresh, path)
        _remove(fresh, path)
        yield renamed(fresh, around, name, statement.value)


def _remove(tree: ast.Module, path: list[Any]) -> None:
    holder = at(tree, path[:-1])
    field, place = path[-1]
    del getattr(holder, field)[place]
    if not getattr(holder, field):
        getattr(holder, field).append(ast.Pass())


def _function_around(tree: ast.Module, path: list[Any]) -> tuple[Any, list[Any]]:
    for length in range(len(path) - 1, 0, -1):
        node = at(tree, path[:length])
        if isinstance(node, ast.FunctionDef):
            return node, path[:length]
    return tree, []


def renamed(tree: ast.Module, around: Any, name: str, value: ast.expr) -> ast.Module:
    """Put a value in the place of a name, wherever it is read."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> Any:
            return copy.deepcopy(value) if node.id == name and isinstance(node.ctx, ast.Load) else node

    Replace().visit(around)
    return tree


def earlier_names(tree: ast.Module) -> Iterator[ast.Module]:
    """`b = f(a); return b` -> `return a`: use a name that was there before, so that what made the other can go."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        parameters = [argument.arg for argument in function.args.args]
        for node, path in paths(tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in parameters:
                continue
            if node not in set(ast.walk(function)):
                continue
            stored = [
                found.id
                for found in ast.walk(function)
                if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store)
            ]
            if node.id not in stored:
                continue
            for other in parameters[:3]:
                fresh = copy.deepcopy(tree)
                at(fresh, path).id = other
                yield fresh


def without_parameters(tree: ast.Module) -> Iterator[ast.Module]:
    """`def f(a, b)` -> `def f(a)`, and `f(x, y)` -> `f(x)` everywhere. One question for each parameter."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for place, argument in enumerate(function.args.args):
            uses = [
                node
                for node in ast.walk(ast.Module(function.body, []))
                if isinstance(node, ast.Name) and node.id == argument.arg
            ]
            if uses or argument.arg == "self":
                continue
            yield _without_parameter(copy.deepcopy(tree), function.name, place)


def _without_parameter(tree: ast.Module, name: str, place: int) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name and len(node.args.args) > place:
            method = node.args.args[0].arg == "self"
            defaults = node.args.defaults
            if len(node.args.args) - place <= len(defaults):
                del defaults[place - len(node.args.args)]
            del node.args.args[place]
            at = place - method
            for call in ast.walk(tree):
                _drop_argument(call, name, at)
    return tree


def _drop_argument(node: Any, name: str, place: int) -> None:
    """From a call of a function, or from the tuple `(function, (a, b))` that a factory returns."""
    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called == name and len(node.args) > place:
            del node.args[place]
    if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[1], ast.Tuple):
        first = node.elts[0]
        if isinstance(first, ast.Name) and first.id == name and len(node.elts[1].elts) > place:
            del node.elts[1].elts[place]


def called_bodies(tree: ast.Module) -> Iterator[ast.Module]:
    """`def f(h): return g(h)`, `f(x)` -> `g(x)`: put what a function returns in the place of its call."""
    simple = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and isinstance(node.body[0], ast.Return)
    }
    for node, path in paths(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in simple:
            continue
        function = simple[node.func.id]
        value = getattr(function.body[0], "value", None)
        if value is None or len(node.args) != len(function.args.args) or node.keywords:
            continue
        body = ast.Module([ast.Expr(copy.deepcopy(value))], [])
        for argument, given in zip(function.args.args, node.args, strict=True):
            body = renamed(body, body, argument.arg, given)
        new = cast(ast.Expr, body.body[0]).value
        yield replaced(tree, path, new)
