"""Edits of inputs: plainer tensors, and smaller ones."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from torchparity.programs.expressions import simpler
from torchparity.programs.tree import Change, at, paths, replaced


def plain_tensors(tree: ast.Module) -> Iterator[Change]:
    """`(torch.arange(6) * 7 % 9).view(2, 3).float()` -> `torch.ones(2, 3)`. Three questions for each input."""
    for node, path in paths(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        views = [call for call in ast.walk(node) if _is_view(call)]
        if not views or "arange" not in ast.unparse(node):
            continue
        sizes = cast(ast.Call, views[0]).args
        for maker in ("ones", "zeros", "arange"):
            new: ast.expr = ast.Call(
                ast.Attribute(ast.Name("torch", ast.Load()), maker, ast.Load()), copy.deepcopy(sizes), []
            )
            if maker == "arange" and len(sizes) != 1:
                continue
            yield partial(replaced, tree, path, new)


def smaller_inputs(tree: ast.Module) -> Iterator[Change]:
    """`torch.arange(6).view(2, 3)` -> `torch.arange(3).view(1, 3)`: a smaller size, as many elements as it takes."""
    for node, path in paths(tree):
        if not _is_view(node) or not all(isinstance(size, ast.Constant) for size in node.args):
            continue
        for place, argument in enumerate(node.args):
            for smaller in simpler(argument.value):
                yield partial(_with_size, tree, path, place, smaller)


def _with_size(tree: ast.Module, path: list[Any], place: int, smaller: int) -> ast.Module:
    fresh = copy.deepcopy(tree)
    view = at(fresh, path)
    view.args[place] = ast.Constant(smaller)
    total = math.prod(size.value for size in view.args)
    for call in ast.walk(view):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "arange" and len(call.args) == 1:
            call.args[0] = ast.Constant(total)
    return fresh


def _is_view(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "view"
