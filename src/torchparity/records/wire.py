"""Records as plain data and back: how they travel between processes and into files."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
# How numbers are written that JSON does not know.
NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def plain_data(value: Any) -> Any:
    """Return records, and whatever they hold, as mappings, lists, numbers and text that JSON can say."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def record_from(kind: type[T], data: Any) -> T:
    """Return the record that was written as plain data; its annotations say what everything was."""
    made: T = _made(kind, data)
    return made


def _made(kind: Any, data: Any) -> Any:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        chosen = [entry for entry in inside if entry is not type(None)]
        if data is None and len(chosen) < len(inside):
            return None
        return _made(chosen[0], data) if len(chosen) == 1 else data
    if origin is tuple:
        must_be(data, list, tuple)
        kinds = (inside[0],) * len(data) if inside[1:] == (Ellipsis,) else inside
        return tuple(_made(entry, item) for entry, item in zip(kinds, data, strict=True))
    if dataclasses.is_dataclass(kind):
        must_be(data, Mapping)
        hints: dict[str, Any] = _field_kinds(kind)  # type: ignore[arg-type]
        return kind(**{name: _made(hints[name], item) for name, item in data.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if kind is float and isinstance(data, str):
        return NUMBERS[data]
    if kind is float:
        must_be(data, int, float)
    elif kind is int:
        must_be(data, int)
        if isinstance(data, bool):
            raise TypeError("a bool stands where a number belongs")
    elif kind in (str, bool):
        must_be(data, kind)
    elif origin in (Mapping, dict):
        must_be(data, Mapping)
    elif origin in (Sequence, list):
        must_be(data, list, tuple)
    return data


def must_be(data: Any, *kinds: type) -> None:
    """Raise TypeError where data are not of the kind that a field wants."""
    if not isinstance(data, kinds):
        raise TypeError(f"a {type(data).__name__} stands where a {kinds[0].__name__.lower()} belongs")


def record_field(kind: type, name: str, data: Any) -> Any:
    """Return one field of a record from plain data."""
    return _made(_field_kinds(kind)[name], data)


@functools.cache
def _field_kinds(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
