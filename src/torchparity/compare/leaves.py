"""Take a result apart into leaves, each with the path a person would write to reach it."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import deque
from collections.abc import Iterator, KeysView, Mapping, Set, ValuesView
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchparity import torchapi

# Values that are leaves whatever attributes they have.
ATOMS = (
    str,
    bytes,
    bool,
    int,
    float,
    complex,
    type(None),
    type,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Generator,
    np.generic,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
)

MAX_DEPTH = 40


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One value of one run.

    `changed` is False for state that is bit for bit what it was before the run; its value is then
    not kept. `aliases` names the inputs and state that the value shares storage with; then `value` is a copy, and
    `original` what the run itself made.
    """

    path: str
    role: str
    value: Any
    changed: bool = True
    strides: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()
    requires_grad: bool = False
    is_leaf: bool = True
    original: torch.Tensor | None = None

    @property
    def made(self) -> Any:
        """What the run itself made: whoever followed the run knows it by this."""
        return self.value if self.original is None else self.original


def walk(value: Any, path: str = "", *, into_objects: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) for everything inside lists, mappings, dataclasses and pytrees, and inside plain objects."""
    yield from _walk(value, path, frozenset(), into_objects)


def _walk(value: Any, path: str, seen: frozenset[int], into_objects: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (torch.Tensor, np.ndarray, *ATOMS)) or len(seen) > MAX_DEPTH:
        yield path, value
        return
    if id(value) in seen:
        return
    children = children_of(value, path, into_objects=into_objects)
    if children is None:
        yield path, value
        return
    for child_path, child in children:
        yield from _walk(child, child_path, seen | {id(value)}, into_objects)


def children_of(value: Any, path: str, *, into_objects: bool = True) -> list[tuple[str, Any]] | None:
    """Return the named parts of a container, or None where the value is one piece."""
    if isinstance(value, Mapping):
        return [(f"{path}{_key(key)}", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f"{path}.{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, torch.nn.ParameterList | list | tuple | deque):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, Set):
        ordered = sorted(value, key=repr)
        return [(f"{path}{{{index}}}", item) for index, item in enumerate(ordered)]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f"{path}.{name}", getattr(value, name)) for name in names if hasattr(value, name)]
    registered = torchapi.pytree_children(value)
    if registered is not None:
        return [(f"{path}[{index}]", item) for index, item in enumerate(registered)]
    if isinstance(value, ValuesView | KeysView):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    attributes = attributes_of(value) if into_objects else {}
    if attributes and not isinstance(value, torch.nn.Module):
        return [(f"{path}.{name}", item) for name, item in attributes.items()]
    return None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return what an object holds, in `__dict__` or in `__slots__`."""
    found = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _key(key: Any) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{key!r}]"


def parts_of(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return the plain tensors that a sparse, nested or wrapper tensor is made of (itself, if plain)."""
    if torchapi.is_plain(tensor):
        return [("", tensor)]
    tensor = tensor.detach()
    if tensor.is_nested:
        return [(f".unbind()[{index}]", part) for index, part in enumerate(tensor.unbind())]
    if tensor.layout != torch.strided:
        return [(".to_dense()", tensor.to_dense())]
    if tensor.is_quantized:
        return [(".int_repr()", tensor.int_repr()), (".dequantize()", tensor.dequantize())]
    if torchapi.takes_apart(type(tensor)):
        tensors = {name: value for name, value in held_by(tensor).items() if isinstance(value, torch.Tensor)}
        return [(f".{name}{suffix}", part) for name, value in tensors.items() for suffix, part in parts_of(value)]
    return [("", tensor.as_subclass(torch.Tensor))]


def held_by(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a tensor of a class of its own is made of: as it says itself, or else its attributes."""
    if not torchapi.is_wrapper(type(tensor)):
        return dict(vars(tensor))
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return {name: getattr(tensor, name) for name in names}


def class_of(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's class; a parameter is a tensor like any other."""
    kind = type(tensor)
    return "Tensor" if kind in (torch.nn.Parameter, torch.nn.Buffer) else kind.__qualname__
