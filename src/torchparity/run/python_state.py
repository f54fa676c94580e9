"""The Python state that a model can reach: attributes, lists, mappings, closures, globals. Saved, put back, compared.

Containers are put back in place and keep their identity, because Dynamo guards on it and a check must not cause
recompilations of its own. What a run leaves in them is part of what it computes, like a buffer.
"""

from __future__ import annotations

import copy
import dis
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchparity.compare.leaves import walk
from torchparity.run.subject import defaults_of, functions_of, is_plain_object, variables_of

Container = dict[Any, Any] | list[Any] | set[Any] | deque[Any]
# Values that can be compared by equality.
SCALARS = (bool, int, float, complex, str, type(None))
DEPTH = 8
# A mapping of a module that is larger than this is a registry, and no state of a model.
REGISTRY = 4096
# What every module has is not the state of one.
EVERY_MODULE = frozenset(vars(torch.nn.Module()))
GONE = "<gone>"


@dataclass(frozen=True)
class Saved:
    """A container, what it held, and how a person would write it."""

    path: str
    container: Container
    held: Container
    # Whether nothing in it can change while it holds the very same objects.
    still: bool = False

    def untouched(self) -> bool:
        """Tell whether it holds what it held, object by object, and none of them can have changed."""
        if not self.still or len(self.container) != len(self.held) or isinstance(self.container, set):
            return False
        if isinstance(self.container, dict) and isinstance(self.held, dict):
            held = self.held
            return all(held.get(key, GONE) is value for key, value in self.container.items())
        return all(left is right for left, right in zip(self.container, self.held, strict=True))


@dataclass(frozen=True)
class Variable:
    """A name that a function binds anew: a global, or one of an enclosing function."""

    path: str
    home: dict[str, Any] | types.CellType
    name: str
    value: Any

    def read(self) -> Any:
        """Return what it is bound to now."""
        if isinstance(self.home, dict):
            return self.home.get(self.name, GONE)
        try:
            return self.home.cell_contents
        except ValueError:
            return GONE

    def restore(self) -> None:
        """Bind it to what it was."""
        if self.read() is self.value:
            return
        if isinstance(self.home, dict):
            self.home[self.name] = self.value
        else:
            self.home.cell_contents = self.value


class PythonState:
    """Everything but parameters, buffers and modes that a run can change in Python."""

    def __init__(self, model: Any, modules: dict[str, torch.nn.Module], keep: Callable[[torch.Tensor], None]) -> None:
        self.keep = keep
        self.saved: list[Saved] = []
        self.variables: list[Variable] = []
        self.generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self.arrays: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._seen: set[int] = set()
        for root_name, root in modules.items():
            for name, module in root.named_modules():
                self.save(".".join(part for part in (root_name, name) if part), vars(module), 0)
        if is_plain_object(model):
            self.save("", model.__dict__, 0)
        for function in functions_of(model, modules):
            self._save_variables(function, deep=not modules)

    def _save_variables(self, function: types.FunctionType, *, deep: bool) -> None:
        """Save what a function names: containers, objects that a plain function may change, names it binds anew."""
        bound = rebound_names(function.__code__)
        for name, value, home in variables_of(function):
            if name in bound and not isinstance(value, torch.nn.Module | torch.Tensor):
                self.variables.append(Variable(name, home, name, value))
            if isinstance(value, list | dict | set | deque) and len(value) <= REGISTRY:
                self.save(name, value, 0 if deep else DEPTH - 2)
            elif deep and is_plain_object(value):
                self.save(name, value.__dict__, 0)
        for name, value in defaults_of(function):
            if isinstance(value, list | dict | set | deque):
                self.save(f"{function.__name__}({name})", value, 0 if deep else DEPTH - 2)

    def save(self, path: str, container: Container, depth: int) -> None:
        """Save a container and what is inside it."""
        if id(container) in self._seen or depth > DEPTH:
            return
        self._seen.add(id(container))
        items = entries(container)
        still = all(isinstance(item, SCALARS) or common(container, key) for key, item in items)
        self.saved.append(Saved(path, container, copy.copy(container), still))
        for key, item in items:
            inner = child_path(path, container, key)
            if isinstance(item, torch.Tensor):
                self.keep(item)
            elif isinstance(item, torch.Generator):
                self.generators.append((item, item.get_state()))
            elif isinstance(item, dict | list | set | deque):
                self.save(inner, item, depth + 1)
            elif isinstance(item, tuple):
                self.save(inner, list(item), depth + 1)
            elif isinstance(item, np.ndarray):
                self.arrays.append((item, item.copy()))
            elif is_plain_object(item):
                self.save(inner, item.__dict__, depth + 1)

    def restore(self) -> None:
        """Put everything back."""
        for saved in self.saved:
            if saved.container or saved.held:  # Of a module's mappings most are empty.
                refill(saved.container, saved.held)
        for variable in self.variables:
            variable.restore()
        for generator, state in self.generators:
            generator.set_state(state)
        for array, held in self.arrays:
            np.copyto(array, held)

    def changes(self) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) of every tensor in the state, and of every other value that is not what it was."""
        for saved in self.saved:
            if saved.container or saved.held:
                yield from self._changes_in(saved)
        for variable in self.variables:
            value = variable.read()
            if value is not variable.value:
                yield from leaves_of(variable.path, value, variable.value)

    def _changes_in(self, saved: Saved) -> Iterator[tuple[str, Any]]:
        if saved.untouched():
            return
        if isinstance(saved.container, set):
            if saved.container != saved.held:
                yield saved.path, ", ".join(sorted(map(repr, saved.container)))
            return
        before = dict(entries(saved.held))
        now = dict(entries(saved.container))
        for key, value in now.items():
            if common(saved.container, key):
                continue
            path = child_path(saved.path, saved.container, key)
            if id(value) in self._seen and before.get(key, self) is value:
                continue  # It is looked into by itself.
            yield from leaves_of(path, value, before.get(key, self))
        for key in before.keys() - now.keys():
            if not common(saved.container, key):
                yield child_path(saved.path, saved.container, key), GONE


def leaves_of(path: str, value: Any, before: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors inside a value, and, where it is not what it was, its numbers and texts."""
    held = {} if value is before else dict(walk(before, path, into_objects=False))
    for name, leaf in walk(value, path, into_objects=False):
        if isinstance(leaf, torch.Tensor):
            yield name, leaf
        elif value is not before and isinstance(leaf, SCALARS):
            old = held.get(name, held)
            if type(leaf) is not type(old) or leaf != old:
                yield name, leaf


def entries(container: Container) -> list[tuple[Any, Any]]:
    """Return what a container holds, by key or place."""
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container))


def child_path(path: str, container: Container, key: Any) -> str:
    """Return how an entry is written."""
    if isinstance(container, dict) and isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def common(container: Container, key: Any) -> bool:
    """Tell whether an entry is nothing of the model's own: every module has it."""
    return isinstance(container, dict) and isinstance(key, str) and (key in EVERY_MODULE or key.startswith("__"))


def rebound_names(code: types.CodeType) -> set[str]:
    """Return the globals, and the variables of enclosing functions, that a function binds anew."""
    found = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars)
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= rebound_names(constant)
    return found


def refill(container: Container, saved: Container) -> None:
    """Make a container hold what a copy of it holds, leaving it alone where it already does."""
    if isinstance(container, dict) and isinstance(saved, dict):
        if [id(key) for key in container] != [id(key) for key in saved]:
            container.clear()
        for key, value in saved.items():
            if key not in container or container[key] is not value:
                container[key] = value
    elif isinstance(container, list | deque) and isinstance(saved, list | deque):
        if len(container) == len(saved) and all(left is right for left, right in zip(container, saved, strict=True)):
            return
        container.clear()
        container.extend(saved)
    elif isinstance(container, set) and isinstance(saved, set) and container != saved:
        container.clear()
        container.update(saved)
