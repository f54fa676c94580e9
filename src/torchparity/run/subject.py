"""What is checked: a model, its inputs, and how it is trained."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import attributes_of, walk
from torchparity.errors import UsageError

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A model with everything needed to run it.

    `input_sets` holds several calls of one check, each as `args`, `(args, kwargs)` or a mapping of
    keyword arguments; where it is empty, `args` and `kwargs` are the one call. `loss` turns the
    outputs into a scalar; `optimizer` is called with the parameters and returns an optimizer;
    `dynamic` is handed to torch.compile.
    """

    model: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    input_sets: Sequence[Any] = ()
    loss: Callable[[Any], torch.Tensor] | str | None = None
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | str | None = None
    dynamic: bool | None = None
    name: str = ""

    def calls(self) -> list[Inputs]:
        """Return the inputs of each call, in order."""
        if not self.input_sets:
            return [(as_args(self.args), dict(self.kwargs or {}))]
        return [as_inputs(entry) for entry in self.input_sets]

    def title(self) -> str:
        """Return a name to show."""
        return self.name or getattr(self.model, "__name__", type(self.model).__name__)


def as_args(args: Any) -> tuple[Any, ...]:
    """Accept a lone tensor where a tuple of arguments is meant."""
    return (args,) if isinstance(args, torch.Tensor) else tuple(args)


def as_inputs(entry: Any) -> Inputs:
    """Read one input set: args, (args, kwargs), or keyword arguments alone."""
    if isinstance(entry, torch.Tensor):
        return (entry,), {}
    if isinstance(entry, Mapping):
        return (), dict(entry)
    if not isinstance(entry, Sequence):
        raise UsageError(
            f"an input set cannot be a {type(entry).__name__}",
            hint="give a tuple of arguments, (args, kwargs), or a mapping of keyword arguments",
        )
    if len(entry) == 2 and isinstance(entry[0], tuple | list) and isinstance(entry[1], Mapping):
        return tuple(entry[0]), dict(entry[1])
    return tuple(entry), {}


def owned_modules(model: Any) -> dict[str, torch.nn.Module]:
    """Return the modules a model computes with: itself, or those that a function reaches."""
    return _named(value for value in _reachable(model, "", set()) if isinstance(value[1], torch.nn.Module))


def loose_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that a plain function reaches outside any module."""
    return _named(
        value
        for value in _reachable(model, "", set())
        if isinstance(value[1], torch.Tensor) and torchapi.is_plain(value[1])
    )


def _named(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Give everything a name of its own: two closures may both call a thing `model`."""
    named: dict[str, Any] = {}
    for name, value in found:
        unique, number = name, 2
        while unique in named:
            unique, number = f"{name}#{number}", number + 1
        named[unique] = value
    return named


def _reachable(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the modules and tensors behind a callable: closures, `self`, partial arguments, globals it names."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module | torch.Tensor):
        yield name, value
    elif isinstance(value, functools.partial):
        yield from _reachable(value.func, name, seen)
        for part, child in [*enumerate(value.args), *value.keywords.items()]:
            yield from _reachable(child, f"{name}[{part}]", seen)
    elif isinstance(value, types.MethodType):
        yield from _reachable(value.__self__, name, seen)
        yield from _reachable(value.__func__, name, seen)
    elif isinstance(value, types.FunctionType):
        if value.__module__ is None or value.__module__.split(".")[0] != "torch":
            for child_name, child, _ in variables_of(value):
                yield from _reachable(child, child_name, seen)
    elif isinstance(value, list | tuple | dict | set) or is_plain_object(value):
        for path, child in walk(attributes_of(value) if is_plain_object(value) else value, name):
            if isinstance(child, torch.nn.Module | torch.Tensor):
                yield from _reachable(child, path.removeprefix("."), seen)


def functions_of(model: Any, modules: Mapping[str, torch.nn.Module]) -> list[types.FunctionType]:
    """Return the functions that a model is: itself, or the forward methods of its modules that are not torch's own."""
    found: dict[int, types.FunctionType] = {}
    if isinstance(model, types.MethodType):
        model = model.__func__
    if isinstance(model, types.FunctionType):
        found[id(model)] = model
    for root in modules.values():
        for module in root.modules():
            forward = getattr(type(module), "forward", None)
            if isinstance(forward, types.FunctionType) and str(forward.__module__).split(".")[0] != "torch":
                found[id(forward)] = forward
    return list(found.values())


def is_plain_object(value: Any) -> bool:
    """Tell whether a value is an object of some user's class, with attributes that a run may change."""
    if isinstance(value, torch.nn.Module | type | types.ModuleType) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, types.SimpleNamespace):
        return True
    home = type(value).__module__.split(".")[0]
    return home not in ("torch", "numpy", "builtins", "functools", "types", "collections", "typing", "enum")


def variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any, dict[str, Any] | types.CellType]]:
    """Yield the closure variables and the globals that a function, or one written inside it, names; and their home."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents, cell
        except ValueError:  # The variable is not bound yet.
            continue
    for name in dict.fromkeys(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name], function.__globals__


def defaults_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that a function has values for; one that can be changed outlives the call."""
    values, code = function.__defaults__ or (), function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
