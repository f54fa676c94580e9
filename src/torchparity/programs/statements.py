"""Edits of statements: left out, or taken out of what is around them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torchparity.programs.tree import BODIES, Change, at, functions, names_read, paths, renamed, spliced

# The simplest operation that a compiler makes a graph of.
ANCHOR = "torch.ones(1)"


def sliced(tree: ast.Module) -> Iterator[Change]:
    """`b = f(a); c = g(a); return b, c` -> `b = f(a); return b`: one value, and what it needs. n questions.

    The values that halve the function come first.
    """
    for function, path in functions(tree):
        assigned = [
            (place, node.targets[0].id)
            for place, node in enumerate(function.body)
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ]
        if not isinstance(function.body[-1], ast.Return):
            continue
        for place, name in (assigned[number] for number in halving(len(assigned))):
            yield partial(_with_end, tree, path, place, name)


def halving(count: int) -> list[int]:
    """Return the numbers below one, those in the middle of the largest gaps first: 0 to 6 is 3 1 5 0 2 4 6."""
    order, gaps = [], [(0, count)]
    while gaps:
        low, high = gaps.pop(0)
        if low < high:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle + 1, high)]
    return order


def _with_end(tree: ast.Module, path: list[Any], place: int, name: str) -> ast.Module:
    fresh = copy.deepcopy(tree)
    function = at(fresh, path)
    function.body[place + 1 :] = [ast.Return(ast.Name(name, ast.Load()))]
    _prune(function)
    return fresh


def without_unused(tree: ast.Module) -> Iterator[Change]:
    """`a = f(); b = g(); return b` -> `b = g(); return b`: leave out all values that nobody reads. One question."""
    for _, path in functions(tree):
        yield partial(_pruned, tree, path)


def _pruned(tree: ast.Module, path: list[Any]) -> ast.Module:
    fresh = copy.deepcopy(tree)
    _prune(at(fresh, path))
    return fresh


def _prune(function: ast.FunctionDef) -> None:
    """Leave out assignments to names that nobody reads after them, again and again."""
    while True:
        read = names_read(function)
        kept = [node for node in function.body if not _is_unread(node, read)]
        if len(kept) == len(function.body):
            return
        function.body[:] = kept or [ast.Pass()]
        if not kept:
            return


def _is_unread(node: ast.stmt, read: set[str]) -> bool:
    if isinstance(node, ast.If | ast.For | ast.With):
        inner = [*node.body, *getattr(node, "orelse", [])]
        return all(_is_unread(part, read) for part in inner)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id not in read
    if not isinstance(node, ast.Assign):
        return isinstance(node, ast.Pass)
    return all(isinstance(target, ast.Name) and target.id not in read for target in node.targets)


def without_statements(tree: ast.Module) -> Iterator[Change]:
    """`a; b; c` -> `c`: leave out runs of statements, long ones first, the last ones first. n log n questions."""
    lists: list[tuple[list[Any], str]] = [([], "body")]
    lists += [(path, field) for node, path in paths(tree) for field in BODIES if _is_body(node, field)]
    runs: list[tuple[int, list[Any], str, int]] = []
    for path, field in lists:
        count = len(getattr(at(tree, path), field))
        length = count
        while length:
            runs += [(length, path, field, start) for start in range(count - length, -1, -length)]
            length //= 2
    for length, path, field, start in sorted(runs, key=lambda entry: -entry[0]):
        yield partial(_without, tree, path, field, start, length)


def _without(tree: ast.Module, path: list[Any], field: str, start: int, length: int) -> ast.Module:
    fresh = copy.deepcopy(tree)
    statements = getattr(at(fresh, path), field)
    del statements[start : start + length]
    if not statements and field == "body" and path:
        statements.append(ast.Pass())
    return fresh


def _is_body(node: Any, field: str) -> bool:
    value = getattr(node, field, None)
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt)


def anchored(tree: ast.Module) -> Iterator[Change]:
    """`for layer in self.layers: x = layer(x)` -> `torch.ones(1)`: what has no operation is not compiled.

    One question for each statement of a function that cannot be left out.
    """
    operation = ast.parse(ANCHOR).body
    for _, path in functions(tree):
        for place, node in enumerate(at(tree, path).body):
            if not isinstance(node, ast.Return | ast.FunctionDef | ast.ClassDef):
                yield partial(spliced, tree, [*path, ("body", place)], operation)


def unwrapped(tree: ast.Module) -> Iterator[Change]:
    """`if x: a` -> `a`; also for, while, with and try. One question for each body."""
    for node, path in paths(tree):
        if not isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            continue
        for field in BODIES:
            inner = getattr(node, field, None)
            if not inner:
                continue
            if isinstance(node, ast.For) and field == "body":
                yield partial(_once, tree, path)
            lead = _entered(node) if field == "body" else []
            for before in [lead, []] if lead else [[]]:
                yield partial(spliced, tree, path, [*before, *inner])


def _entered(node: ast.stmt) -> list[ast.stmt]:
    """Return what gives the names of a context their values."""
    if not isinstance(node, ast.With):
        return []
    return [ast.Assign([item.optional_vars], item.context_expr) for item in node.items if item.optional_vars]


def _once(tree: ast.Module, path: list[Any]) -> ast.Module:
    """`for place, x in enumerate(xs): f(place, x)` -> `f(0, xs[0])`."""
    loop = copy.deepcopy(at(tree, path))
    first = first_of(loop.iter)
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    values = first.elts if isinstance(first, ast.Tuple) and len(targets) > 1 else [first]
    if len(targets) > len(values):
        values = [_item(first, place) for place in range(len(targets))]
    body = ast.Module(loop.body, [])
    for target, value in zip(targets, values, strict=False):
        if isinstance(target, ast.Name):
            renamed(body, target.id, value)
    return spliced(tree, path, body.body)


def first_of(several: ast.expr) -> ast.expr:
    """Return the first of what a loop goes over: `range(4)` -> `0`, `enumerate(xs)` -> `0, xs[0]`, `xs` -> `xs[0]`."""
    if isinstance(several, ast.Tuple | ast.List) and several.elts:
        return several.elts[0]
    if isinstance(several, ast.Call) and isinstance(several.func, ast.Name) and several.args:
        if several.func.id == "range":
            return several.args[0] if len(several.args) > 1 else ast.Constant(0)
        if several.func.id == "enumerate":
            return ast.Tuple([ast.Constant(0), first_of(several.args[0])], ast.Load())
        if several.func.id == "zip":
            return ast.Tuple([first_of(each) for each in several.args], ast.Load())
    return _item(several, 0)


def _item(several: ast.expr, place: int) -> ast.expr:
    return ast.Subscript(several, ast.Constant(place), ast.Load())
