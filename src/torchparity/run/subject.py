"""What is checked: a model, its inputs, and how it is trained."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import walk
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
    """Return the modules a model computes with: itself, or those a function reaches by closure, `self`,
    partial arguments or globals it names.
    """
    found: dict[str, torch.nn.Module] = {}
    for name, value in _reachable(model, "", set()):
        if isinstance(value, torch.nn.Module) and not any(value is held for held in found.values()):
            found[name] = value
    return found


def loose_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that a plain function reaches outside any module."""
    return {
        name: value
        for name, value in _reachable(model, "", set())
        if isinstance(value, torch.Tensor) and torchapi.is_plain(value)
    }


def _reachable(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module | torch.Tensor):
        yield name, value
    elif isinstance(value, functools.partial):
        for child in (value.func, *value.args, *value.keywords.values()):
            yield from _reachable(child, name, seen)
    elif isinstance(value, types.MethodType):
        yield from _reachable(value.__self__, name, seen)
    elif isinstance(value, types.FunctionType):
        yield from _reachable_from_function(value, seen)
    elif callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        for path, child in walk(dict(vars(value)), name):
            yield from _reachable(child, path.removeprefix("."), seen)


def _reachable_from_function(function: types.FunctionType, seen: set[int]) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    named: list[tuple[str, Any]] = []
    for name, cell in cells:
        try:
            named.append((name, cell.cell_contents))
        except ValueError:  # The variable is not bound yet.
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            named.append((name, function.__globals__[name]))
    for name, value in named:
        if isinstance(value, torch.nn.Module | torch.Tensor):
            yield from _reachable(value, name, seen)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            if getattr(value, "__module__", "").split(".")[0] != "torch":
                yield from _reachable(value, name, seen)
        elif isinstance(value, list | tuple | dict):
            for path, child in walk(value, name):
                if isinstance(child, torch.nn.Module | torch.Tensor):
                    yield from _reachable(child, path, seen)
