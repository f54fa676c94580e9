"""Edits of a Python program: each is a function from a tree to smaller or simpler trees, with a picture.

A tree that comes in is never changed. What comes out need not be valid: whoever asks about it finds out.
"""

from __future__ import annotations

import ast
import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

Edit = Callable[[ast.Module], Iterator[ast.Module]]
BODIES = ("body", "orelse", "finalbody")


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


def _changed(tree: ast.Module, path: list[tuple[str, int | None]], change: Callable[[Any, str, int | None], None]) -> Any:
    """Return a copy of a tree in which the field at the end of a path was changed."""
    fresh = copy.deepcopy(tree)
    holder: Any = fresh
    for name, place in path[:-1]:
        holder = getattr(holder, name)
        holder = holder if place is None else holder[place]
    change(holder, *path[-1])
    return fresh


def _paths(node: ast.AST, before: tuple[tuple[str, int | None], ...] = ()) -> Iterator[tuple[Any, list[Any]]]:
    """Yield every node below one with its path, the outer ones first."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            path = (*before, (name, None))
            yield value, list(path)
            yield from _paths(value, path)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.AST):
                    path = (*before, (name, place))
                    yield item, list(path)
                    yield from _paths(item, path)


def _put(holder: Any, name: str, place: int | None, new: Any) -> None:
    if place is None:
        setattr(holder, name, new)
    else:
        getattr(holder, name)[place] = new


# --- statements ----------------------------------------------------------------------------------


def without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """`a; b; c` -> `c`: leave out runs of statements, long ones first, the last ones first. n log n questions."""
    lists = [([], "body")] + [(path, field) for node, path in _paths(tree) for field in BODIES if _is_body(node, field)]
    sizes: list[tuple[int, list[Any], str, int]] = []
    for path, field in lists:
        count = len(getattr(_at(tree, path), field))
        length = count
        while length:
            sizes += [(length, path, field, start) for start in range(count - length, -1, -length)]
            length //= 2
    for length, path, field, start in sorted(sizes, key=lambda entry: -entry[0]):
        fresh = copy.deepcopy(tree)
        statements = getattr(_at(fresh, path), field)
        del statements[start : start + length]
        if not statements and field == "body" and path:
            statements.append(ast.Pass())
        yield fresh


def _is_body(node: Any, field: str) -> bool:
    value = getattr(node, field, None)
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt)


def _at(tree: Any, path: list[Any]) -> Any:
    for name, place in path:
        tree = getattr(tree, name)
        tree = tree if place is None else tree[place]
    return tree


def unwrapped(tree: ast.Module) -> Iterator[ast.Module]:
    """`if x: a` -> `a`; also for, while, with and try. One question for each body."""
    for node, path in _paths(tree):
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
                first = [ast.Assign([item.optional_vars], item.context_expr) for item in node.items if item.optional_vars]
            for lead in ([first, []] if first else [[]]):
                yield _changed(tree, path, _spliced([*lead, *inner]))


def _spliced(statements: list[Any]) -> Callable[[Any, str, int | None], None]:
    def change(holder: Any, name: str, place: int | None) -> None:
        assert place is not None
        getattr(holder, name)[place : place + 1] = copy.deepcopy(statements)

    return change


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


# --- expressions ---------------------------------------------------------------------------------


def simpler_expressions(tree: ast.Module) -> Iterator[ast.Module]:
    """`f(g(x))` -> `g(x)`: put a part of an expression in its place, outer ones first. A few questions for each."""
    for node, path in _paths(tree):
        if not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            continue
        for part in _parts(node):
            yield _changed(tree, path, lambda holder, name, place, part=part: _put(holder, name, place, copy.deepcopy(part)))


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions inside an expression that may stand for it."""
    if isinstance(node, ast.Call):
        method = [node.func.value] if isinstance(node.func, ast.Attribute) and not _is_torch(node.func.value) else []
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
        return [] if _is_torch(node) else [node.value]
    if isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 1:
        return list(node.elts)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return [node.elt]
    return []


def _is_torch(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("torch", "nn", "F", "math", "np", "numpy")


def fewer_parts(tree: ast.Module) -> Iterator[ast.Module]:
    """`f(x, y, z=1)` -> `f(x, y)`: leave out an argument, an element, a decorator, a base. One question for each."""
    for node, path in _paths(tree):
        for field in ("elts", "args", "keywords", "decorator_list", "bases", "names", "keys"):
            items = getattr(node, field, None)
            if not isinstance(items, list) or (field == "args" and not isinstance(node, ast.Call)):
                continue
            for place in reversed(range(len(items))):
                if field in ("elts", "names") and len(items) == 1:
                    continue
                fresh = copy.deepcopy(tree)
                holder = _at(fresh, path)
                del getattr(holder, field)[place]
                if field == "keys":
                    del holder.values[place]
                yield fresh


def simpler_constants(tree: ast.Module) -> Iterator[ast.Module]:
    """`17` -> `0`, `1`, `2`, `8`, `16`; `torch.float16` -> `torch.float32`. A few questions for each."""
    for node, path in _paths(tree):
        if isinstance(node, ast.Constant):
            for value in _simpler(node.value):
                yield _changed(
                    tree, path, lambda holder, name, place, value=value: _put(holder, name, place, ast.Constant(value))
                )
        elif isinstance(node, ast.Attribute) and _is_torch(node) and node.attr in SIMPLER_DTYPES:
            for attribute in SIMPLER_DTYPES[node.attr]:
                fresh = copy.deepcopy(tree)
                _at(fresh, path).attr = attribute
                yield fresh
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            yield _changed(tree, path, lambda holder, name, place: _put(holder, name, place, ast.Constant(0)))


SIMPLER_DTYPES = {
    "float64": ("float32",), "float16": ("float32",), "bfloat16": ("float32", "float16"), "int32": ("int64",),
    "int16": ("int64", "int32"), "int8": ("int64", "int16"), "uint8": ("int64", "int8"), "channels_last": (),
}  # fmt: skip


def _simpler(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, int):
        return [number for number in dict.fromkeys((0, 1, 2, value // 2, value - 1)) if 0 <= number < value]
    if isinstance(value, float):
        return [number for number in (0.0, 1.0, 0.5, float(round(value))) if len(repr(number)) < len(repr(value)) or (number, value) == (1.0, 0.5)]
    return []


# --- names ---------------------------------------------------------------------------------------


def inlined(tree: ast.Module) -> Iterator[ast.Module]:
    """`b = f(a); return g(b)` -> `return g(f(a))`: put a value in the place of its name. One question for each name."""
    for node, path in _paths(tree):
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
        around = _at(fresh, inside)
        statement = _at(fresh, path)
        _remove(fresh, path)
        yield _renamed(fresh, around, name, statement.value)


def _remove(tree: ast.Module, path: list[Any]) -> None:
    holder = _at(tree, path[:-1])
    field, place = path[-1]
    del getattr(holder, field)[place]
    if not getattr(holder, field):
        getattr(holder, field).append(ast.Pass())


def _function_around(tree: ast.Module, path: list[Any]) -> tuple[Any, list[Any]]:
    for length in range(len(path) - 1, 0, -1):
        node = _at(tree, path[:length])
        if isinstance(node, ast.FunctionDef):
            return node, path[:length]
    return tree, []


def _renamed(tree: ast.Module, around: Any, name: str, value: ast.expr) -> ast.Module:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> Any:
            return copy.deepcopy(value) if node.id == name and isinstance(node.ctx, ast.Load) else node

    Replace().visit(around)
    return tree


def earlier_names(tree: ast.Module) -> Iterator[ast.Module]:
    """`b = f(a); return b` -> `return a`: use a name that was there before, so that what made the other can go."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        parameters = [argument.arg for argument in function.args.args]
        for node, path in _paths(tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in parameters:
                continue
            if node not in set(ast.walk(function)):
                continue
            stored = [found.id for found in ast.walk(function) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store)]
            if node.id not in stored:
                continue
            for other in parameters[:3]:
                fresh = copy.deepcopy(tree)
                _at(fresh, path).id = other
                yield fresh


def without_parameters(tree: ast.Module) -> Iterator[ast.Module]:
    """`def f(a, b)` -> `def f(a)`, and `f(x, y)` -> `f(x)` everywhere. One question for each parameter."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for place, argument in enumerate(function.args.args):
            uses = [node for node in ast.walk(ast.Module(function.body, [])) if isinstance(node, ast.Name) and node.id == argument.arg]
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


def plain_tensors(tree: ast.Module) -> Iterator[ast.Module]:
    """`(torch.arange(6) * 7 % 9).view(2, 3).float()` -> `torch.ones(2, 3)`. Three questions for each input."""
    for node, path in _paths(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        views = [call for call in ast.walk(node) if _is_view(call)]
        if not views or "arange" not in ast.unparse(node):
            continue
        sizes = cast(ast.Call, views[0]).args
        for maker in ("ones", "zeros", "arange"):
            new: ast.expr = ast.Call(ast.Attribute(ast.Name("torch", ast.Load()), maker, ast.Load()), copy.deepcopy(sizes), [])
            if maker == "arange" and len(sizes) != 1:
                continue
            yield _changed(tree, path, lambda holder, name, place, new=new: _put(holder, name, place, new))


def smaller_inputs(tree: ast.Module) -> Iterator[ast.Module]:
    """`torch.arange(6).view(2, 3)` -> `torch.arange(3).view(1, 3)`: a smaller size, and as many elements as it takes."""
    for node, path in _paths(tree):
        if not _is_view(node) or not all(isinstance(size, ast.Constant) for size in node.args):
            continue
        for place, argument in enumerate(node.args):
            for smaller in _simpler(argument.value):
                fresh = copy.deepcopy(tree)
                view = _at(fresh, path)
                view.args[place] = ast.Constant(smaller)
                total = math.prod(size.value for size in view.args)
                for call in ast.walk(view):
                    if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "arange" and len(call.args) == 1:
                        call.args[0] = ast.Constant(total)
                yield fresh


def _is_view(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "view"


def called_bodies(tree: ast.Module) -> Iterator[ast.Module]:
    """`def f(h): return g(h)`, `f(x)` -> `g(x)`: put what a function returns in the place of its call."""
    simple = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and isinstance(node.body[0], ast.Return)
    }
    for node, path in _paths(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in simple:
            continue
        function = simple[node.func.id]
        value = getattr(function.body[0], "value", None)
        if value is None or len(node.args) != len(function.args.args) or node.keywords:
            continue
        body = ast.Module([ast.Expr(copy.deepcopy(value))], [])
        for argument, given in zip(function.args.args, node.args, strict=True):
            body = _renamed(body, body, argument.arg, given)
        new = cast(ast.Expr, body.body[0]).value
        yield _changed(tree, path, lambda holder, name, place, new=new: _put(holder, name, place, copy.deepcopy(new)))


# In the order in which they are tried: what takes away most first.
EDITS: tuple[Edit, ...] = (
    without_statements, unwrapped, simpler_expressions, earlier_names, without_parameters, fewer_parts, called_bodies,
    inlined, plain_tensors, smaller_inputs, simpler_constants,
)  # fmt: skip
