"""Edits of expressions: a part in the place of the whole, fewer parts, simpler constants."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torchparity.programs.tree import Change, at, is_torch, paths, replaced


def simpler_expressions(tree: ast.Module) -> Iterator[Change]:
    """`f(g(x))` -> `g(x)`: put a part of an expression in its place, outer ones first. A few questions for each."""
    for node, path in paths(tree):
        if not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            continue
        for part in _parts(node):
            yield partial(replaced, tree, path, part)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions inside an expression that may stand for it."""
    if isinstance(node, ast.Call):
        method = [node.func.value] if isinstance(node.func, ast.Attribute) and not is_torch(node.func.value) else []
        parts = [*method, *node.args, *(keyword.value for keyword in node.keywords)]
        return [part.value if isinstance(part, ast.Starred) else part for part in parts]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.Compare):
        return [node.left]
    if isinstance(node, ast.Attribute):
        return [] if is_torch(node) else [node.value]
    if isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 1:
        return list(node.elts)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return [node.elt]
    return []


def fewer_parts(tree: ast.Module) -> Iterator[Change]:
    """`f(x, y, z=1)` -> `f(x, y)`: leave out an argument, an element, a decorator, a base. One question for each."""
    for node, path in paths(tree):
        for field in ("elts", "args", "keywords", "decorator_list", "bases", "names", "keys"):
            items = getattr(node, field, None)
            if not isinstance(items, list) or (field == "args" and not isinstance(node, ast.Call)):
                continue
            for place in reversed(range(len(items))):
                if field in ("elts", "names") and len(items) == 1:
                    continue
                yield partial(_without_part, tree, path, field, place)


def _without_part(tree: ast.Module, path: list[Any], field: str, place: int) -> ast.Module:
    fresh = copy.deepcopy(tree)
    holder = at(fresh, path)
    del getattr(holder, field)[place]
    if field == "keys":
        del holder.values[place]
    return fresh


def simpler_constants(tree: ast.Module) -> Iterator[Change]:
    """`17` -> `0`, `1`, `2`, `8`, `16`; `torch.float16` -> `torch.float32`. A few questions for each."""
    for node, path in paths(tree):
        if isinstance(node, ast.Constant):
            for value in simpler(node.value):
                yield partial(replaced, tree, path, ast.Constant(value))
        elif isinstance(node, ast.Attribute) and is_torch(node) and node.attr in SIMPLER_DTYPES:
            for attribute in SIMPLER_DTYPES[node.attr]:
                yield partial(replaced, tree, path, ast.Attribute(node.value, attribute, node.ctx))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            yield partial(replaced, tree, path, ast.Constant(0))


SIMPLER_DTYPES = {
    "float64": ("float32",), "float16": ("float32",), "bfloat16": ("float32", "float16"), "int32": ("int64",),
    "int16": ("int64", "int32"), "int8": ("int64", "int16"), "uint8": ("int64", "int8"), "channels_last": (),
}  # fmt: skip


def simpler(value: Any) -> list[Any]:
    """Return constants that are simpler than one, the simplest first."""
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, int):
        return [number for number in dict.fromkeys((0, 1, 2, value // 2, value - 1)) if 0 <= number < value]
    if isinstance(value, float):
        return [
            number
            for number in (0.0, 1.0, 0.5, float(round(value)))
            if len(repr(number)) < len(repr(value)) or (number, value) == (1.0, 0.5)
        ]
    return []
