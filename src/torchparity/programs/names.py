"""Edits of names: values in the place of names, parameters that go, bodies in the place of calls."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from torchparity.programs.tree import Change, at, functions, names_read, paths, renamed, replaced

FORWARD, SELF = "forward", "self"


def inlined(tree: ast.Module) -> Iterator[Change]:
    """`b = f(a); return g(b)` -> `return g(f(a))`: put a value in the place of its name. One question for each name."""
    for function, inside in [*functions(tree), (tree, [])]:
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        reads = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
        stores = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
        for node, path in paths(function):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id
            plain = isinstance(node.value, ast.Name | ast.Constant)
            if stores[name] == 1 and (reads[name] == 1 or plain):
                yield partial(_inlined, tree, inside, path, name)


def _inlined(tree: ast.Module, inside: list[Any], path: list[Any], name: str) -> ast.Module:
    fresh = copy.deepcopy(tree)
    function = at(fresh, inside)
    value = at(function, path).value
    _remove(function, path)
    renamed(function, name, value)
    return fresh


def _remove(tree: ast.Module, path: list[Any]) -> None:
    holder = at(tree, path[:-1])
    field, place = path[-1]
    del getattr(holder, field)[place]
    if not getattr(holder, field):
        getattr(holder, field).append(ast.Pass())


def earlier_names(tree: ast.Module) -> Iterator[Change]:
    """`b = f(a); return b` -> `b = f(a); return a`: use what was there before, so that what made the other can go."""
    for function, inside in functions(tree):
        parameters = [argument.arg for argument in function.args.args]
        stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} - names_known(function)
        for node, path in paths(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in stored:
                for other in parameters[:3]:
                    yield partial(replaced, tree, [*inside, *path], ast.Name(other, ast.Load()))


def names_known(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function does not make itself."""
    made = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} - made


def without_parameters(tree: ast.Module) -> Iterator[Change]:
    """`def f(a, b)` -> `def f(a)`, and `f(x, y)` -> `f(x)` everywhere. One question for each parameter."""
    for function, _ in functions(tree):
        read = names_read(function)
        for place, argument in enumerate(function.args.args):
            if argument.arg not in read and argument.arg != "self":
                yield partial(_without_parameter, tree, function.name, place)


def _without_parameter(original: ast.Module, name: str, place: int) -> ast.Module:
    tree = copy.deepcopy(original)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name and len(node.args.args) > place:
            method = node.args.args[0].arg == "self"
            defaults = node.args.defaults
            if len(node.args.args) - place <= len(defaults):
                del defaults[place - len(node.args.args)]
            del node.args.args[place]
            for call in ast.walk(tree):
                _drop_argument(call, name, place - method)
    return tree


def _drop_argument(node: Any, name: str, place: int) -> None:
    """From a call of a function, or from what a factory returns: `function, (a, b)`, or a subject of several calls."""
    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called == name and len(node.args) > place:
            del node.args[place]
    if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[1], ast.Tuple):
        first = node.elts[0]
        if isinstance(first, ast.Name) and first.id == name and len(node.elts[1].elts) > place:
            del node.elts[1].elts[place]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id == name:
        for entry in (entry for keyword in node.keywords for entry in getattr(keyword.value, "elts", ())):
            if isinstance(entry, ast.Tuple) and len(entry.elts) > place:
                del entry.elts[place]


def called_bodies(tree: ast.Module) -> Iterator[Change]:
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
            renamed(body, argument.arg, given)
        yield partial(replaced, tree, path, cast(ast.Expr, body.body[0]).value)


def classes_as_functions(tree: ast.Module) -> Iterator[Change]:
    """`class M: def forward(self, x): return f(x)`, `M()` -> `def M(x): return f(x)`, `M`. One question for each."""
    for place, node in enumerate(tree.body):
        if isinstance(node, ast.ClassDef):
            forward = next((part for part in node.body if getattr(part, "name", "") == FORWARD), None)
            if isinstance(forward, ast.FunctionDef) and forward.args.args and SELF not in names_read(forward):
                yield partial(_as_function, tree, place)


def _as_function(original: ast.Module, place: int) -> ast.Module:
    tree = copy.deepcopy(original)
    made = cast(ast.ClassDef, tree.body[place])
    forward = next(part for part in made.body if isinstance(part, ast.FunctionDef) and part.name == FORWARD)
    forward.name = made.name
    del forward.args.args[0]
    tree.body[place] = forward

    class Uncalled(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> Any:
            self.generic_visit(node)
            return node.func if isinstance(node.func, ast.Name) and node.func.id == forward.name else node

    return cast(ast.Module, Uncalled().visit(tree))


def without_layers(tree: ast.Module) -> Iterator[Change]:
    """`self.layer(x)` -> `x.clone()`: a copy in the place of what a module of its own makes. One question for each."""
    for node, path in paths(tree):
        if not isinstance(node, ast.Call) or SELF not in names_read(node.func):
            continue
        for given in node.args:
            yield partial(replaced, tree, path, ast.Call(ast.Attribute(given, "clone", ast.Load()), [], []))
