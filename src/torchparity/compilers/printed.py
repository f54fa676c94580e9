"""Our own source as text: what scripts need that must run without us, and nothing else of it.

Definitions are printed without docstrings and annotations. `embedded` follows a module to everything that it uses.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

OURS = "torchparity"


@functools.cache
def source_of(*things: Any) -> str:
    """Return the source of functions and classes, one after the other."""
    return "\n\n\n".join(trimmed(ast.parse(inspect.getsource(thing).strip())) for thing in things) + "\n"


def trimmed(tree: ast.AST) -> str:
    """Return a tree as source, without what only a reader or a type checker needs."""
    return as_source(Trim().visit(tree))


def as_source(tree: ast.AST) -> str:
    """Return a tree as source that every Python takes: from 3.12 on, quotes inside of an f-string are no other ones."""
    return ast.unparse(WithoutNestedQuotes().visit(tree))


class WithoutNestedQuotes(ast.NodeTransformer):
    """`f"{', '.join(names)} differ"` -> `"{} differ".format(", ".join(names))`."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Write a text with fields as a call of `format`, where a field holds a text itself."""
        self.generic_visit(node)
        fields = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        if not any(holds_text(part.value) for part in fields) or not all(
            has_no_fields(part.format_spec) for part in fields
        ):
            return node
        template = "".join(
            field_text(part) if isinstance(part, ast.FormattedValue) else escaped(part) for part in node.values
        )
        function = ast.Attribute(ast.Constant(template), "format", ast.Load())
        return ast.Call(function, [part.value for part in fields], [])


def holds_text(node: ast.AST) -> bool:
    """Tell whether there is a text somewhere in an expression."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def has_no_fields(spec: ast.expr | None) -> bool:
    """Tell whether a format of a field is a text without fields of its own."""
    return spec is None or all(isinstance(part, ast.Constant) for part in getattr(spec, "values", [None]))


def field_text(part: ast.FormattedValue) -> str:
    """Return a field as `format` writes it."""
    conversion = f"!{chr(part.conversion)}" if part.conversion > 0 else ""
    spec = "".join(str(entry.value) for entry in getattr(part.format_spec, "values", ()))
    return "{" + conversion + (f":{spec}" if spec else "") + "}"


def escaped(part: ast.expr) -> str:
    """Return what stands between fields, as `format` writes it."""
    return str(getattr(part, "value", "")).replace("{", "{{").replace("}", "}}")


class Trim(ast.NodeTransformer):
    """Takes docstrings and annotations away; fields of records keep theirs, which make them fields."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Trim a function."""
        node.returns = None
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in [*arguments, *filter(None, [node.args.vararg, node.args.kwarg])]:
            argument.annotation = None
        node.body = [self.bare(entry) for entry in without_docstring(node.body)]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Trim a class."""
        node.body = without_docstring(node.body)
        for entry in node.body:
            if isinstance(entry, ast.AnnAssign):
                entry.annotation = ast.Name("object", ast.Load())
        return self.generic_visit(node)

    def bare(self, node: ast.stmt) -> ast.stmt:
        """Return an annotated assignment of a function as a plain one."""
        if not isinstance(node, ast.AnnAssign):
            return node
        return ast.Assign([node.target], node.value, lineno=node.lineno) if node.value is not None else ast.Pass()


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements without the text that stands first."""
    first = body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return (body[1:] or [ast.Pass()]) if is_text else body


@dataclass
class Module:
    """What one of our modules defines, what it imports from elsewhere, and by which names it knows our other ones."""

    name: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    aliases: set[str] = field(default_factory=set)


@functools.cache
def embedded(name: str, *roots: str) -> tuple[tuple[str, ...], str]:
    """Return the imports and the definitions that some names of one of our modules need, in an order that works."""
    modules = list(reached(name, {}))
    homes: dict[str, Module] = {}
    twice: dict[str, str] = {}
    for module in modules:
        for word in (*module.definitions, *module.foreign):
            if word in homes and (word in module.definitions or word in homes[word].definitions):
                twice[word] = f"{homes[word].name} and {module.name}"
            homes.setdefault(word, module)
    wanted, waiting, imports = set[str](), list(roots), set[str]()
    while waiting:
        word = waiting.pop()
        if word in wanted or word not in homes:
            continue
        wanted.add(word)
        assert word not in twice, f"{word} means two things, in {twice[word]}: a script cannot hold both"
        if word in homes[word].foreign:
            imports.add(homes[word].foreign[word])
        else:
            home = homes[word]
            home.definitions[word] = Trim().visit(home.definitions[word])
            waiting += names_in(home.definitions[word], home.aliases)
    texts: list[str] = []
    for module in modules:
        kept = {id(node): node for word, node in module.definitions.items() if word in wanted and homes[word] is module}
        texts += [as_source(Plain(module.aliases).visit(node)) for node in kept.values()]
    text = "\n".join(texts)
    return tuple(sorted(imports)), "\n".join(line for line in text.splitlines() if line.strip()) + "\n"


def reached(name: str, seen: dict[str, Module]) -> Iterator[Module]:
    """Yield our modules that a module imports, directly or not, each after those that it imports; then itself."""
    if name in seen:
        return
    module = seen[name] = Module(name)
    tree = ast.parse(inspect.getsource(importlib.import_module(name)))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == OURS:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = isinstance(
                    getattr(importlib.import_module(node.module or ""), alias.name, None), types.ModuleType
                )
                module.aliases |= {alias.asname or alias.name} if is_module else set()
                yield from reached(inner if is_module else node.module or "", seen)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                line = ast.unparse(
                    ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], 0)
                )
                module.foreign[(alias.asname or alias.name).split(".")[0]] = line
        else:
            if isinstance(node, ast.AnnAssign) and node.value:
                node = ast.Assign([node.target], node.value, lineno=node.lineno)
            module.definitions |= dict.fromkeys(defined_by(node), node)
    yield module


def defined_by(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [entry.id for target in targets for entry in ast.walk(target) if isinstance(entry, ast.Name)]


def names_in(node: ast.AST, aliases: set[str]) -> set[str]:
    """Return every name that a definition may mean, but what it binds; of `torchapi.storage_key` the second."""
    used, bound, far = set[str](), set[str](), set[str]()
    for entry in ast.walk(node):
        if isinstance(entry, ast.Name):
            (used if isinstance(entry.ctx, ast.Load) else bound).add(entry.id)
        elif isinstance(entry, ast.arg):
            bound.add(entry.arg)
        elif isinstance(entry, ast.Attribute) and isinstance(entry.value, ast.Name) and entry.value.id in aliases:
            far.add(entry.attr)
    assert not far & bound, f"{far & bound} is another module's, and a variable beside it: a script cannot hold both"
    return (used - bound) | far


class Plain(ast.NodeTransformer):
    """Calls what our other modules define by its name alone: `torchapi.storage_key` is `storage_key`."""

    def __init__(self, aliases: set[str]) -> None:
        self.aliases = aliases

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Cut the module off."""
        if isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)
