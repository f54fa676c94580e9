"""A request as plain data and back. A backend that is not a registered name is source, which is names all the same.

Data may come from strangers: nothing of it is evaluated, and only names are imported, when something is compiled.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchparity import torchapi
from torchparity.compilers.recipe import recipe_plain
from torchparity.records.wire import must_be
from torchparity.request import EVERY, PLAIN, Request

IMPORT = re.compile(r"import [A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
OUR_FAULTS = "torchparity.faults."
LONGEST_LITERAL = 10_000
# What a field of a request may hold, by how it is annotated.
PLAIN_FIELDS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    str | None: (str, type(None)),
    bool | None: (bool, type(None)),
    int | None: (int, type(None)),
    float | None: (int, float, type(None)),
}


@dataclass(frozen=True)
class SourceBackend:
    """A backend that is known by source only; it is imported when it is first asked to compile."""

    imports: tuple[str, ...]
    expression: str

    @property
    def __name__(self) -> str:
        return self.expression.strip("'\"")  # A name that an import registers, or what the import holds.

    def to_source(self) -> tuple[list[str], str]:
        """Return the imports and the expression."""
        return list(self.imports), self.expression

    def checked(self) -> SourceBackend:
        """Return this, or raise ValueError where it is more than names: modules, and what is found in one of them."""
        if not all(IMPORT.fullmatch(line) for line in self.imports) or len(self.expression) > LONGEST_LITERAL:
            raise ValueError("a backend imports modules by name, and nothing else")
        spoken(self.expression)
        return self

    def resolve(self) -> Callable[..., Any]:
        """Import the modules; return the backend that one of them holds, or that they have registered."""
        with torchapi.keeping_defaults():
            for line in self.imports:
                importlib.import_module(line.removeprefix("import "))
        name, args, kwargs = spoken(self.expression)
        if args is None:
            return name  # type: ignore[return-value]
        module = max((line.removeprefix("import ") for line in self.imports), key=len, default="")
        found: Any = sys.modules[module]
        for part in name.removeprefix(f"{module}.").split("."):
            found = getattr(found, part)
        if kwargs is not None:
            found = found(*args, **kwargs)
        backend: Callable[..., Any] = found
        return backend

    def __call__(self, graph_module: Any, inputs: list[Any], **options: Any) -> Any:
        """Compile as the backend does."""
        return self.resolve()(graph_module, inputs, **options)


def spoken(expression: str) -> tuple[str, list[Any] | None, dict[str, Any] | None]:
    """Read a backend's source: a registered name; a dotted name; or one of our own faults, called with literals."""
    tree = ast.parse(expression, mode="eval").body
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return tree.value, None, None
    call = tree if isinstance(tree, ast.Call) else None
    name = ast.unparse(call.func if call is not None else tree)
    if not DOTTED.fullmatch(name) or (call is not None and not name.startswith(OUR_FAULTS)):
        raise ValueError(f"{expression[:80]!r} is not the name of a backend")
    if call is None:
        return name, [], None
    keywords = {str(entry.arg): ast.literal_eval(entry.value) for entry in call.keywords}
    return name, [ast.literal_eval(entry) for entry in call.args], keywords


def literal(text: Any) -> Any:
    """Return the value of a literal that is not too long."""
    if not isinstance(text, str) or len(text) > LONGEST_LITERAL:
        raise ValueError("a setting is no literal of ours")
    return ast.literal_eval(text)


def request_to_json(request: Request) -> dict[str, Any]:
    """Return a request as plain data that makes the same request again; of a function, its name is left."""
    facts = {name: getattr(request, name) for name in EVERY}
    imports, expression = recipe_plain(request).backend_source()
    facts["backend"] = {"imports": imports, "expression": expression}
    for name in ("options", "config"):
        facts[name] = {key: repr(value) for key, value in facts[name].items()}
    for name in ("optimizer", "loss"):
        if callable(facts[name]):
            facts[name] = {"function": getattr(facts[name], "__name__", type(facts[name]).__name__)}
    return {**facts, "ignore": list(request.ignore)}


def request_from_json(facts: Mapping[str, Any]) -> Request:
    """Return the request; a backend that is not a name is kept as source, not run."""
    hints = typing.get_type_hints(Request)
    # What a bundle does not know of, because it is older, was not asked for.
    made = {name: facts.get(name, getattr(PLAIN, name)) for name in EVERY}
    expression, imports = facts["backend"]["expression"], facts["backend"]["imports"]
    must_be(expression, str)
    must_be(imports, list)
    source = SourceBackend(tuple(imports), expression).checked()
    # A name that an import must register first is source as well: who only reads need not have it.
    name, args, _ = spoken(expression)
    made["backend"] = source if imports or args is not None else name
    for name in ("options", "config"):
        made[name] = {key: literal(value) for key, value in facts[name].items()}
    for name in ("optimizer", "loss"):
        made[name] = None if isinstance(made[name], dict) else made[name]
    made["ignore"] = tuple(facts["ignore"])
    for name, value in made.items():
        allowed = PLAIN_FIELDS.get(hints[name])
        if allowed is not None and not isinstance(value, allowed):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return Request(**made)
