"""Inputs of a graph as facts: which storage, which strides, which dtype; and the same facts as source.

Tensors are kept storage by storage, so that two views of one storage are two views of one storage again, with
its size, their strides and offsets. What cannot be written down exactly is refused; nothing is ever replaced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.checksum import fingerprint
from torchparity.errors import CaseError
from torchparity.records.wire import must_be, record_field

COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A strided view of one storage."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    parameter: bool = False
    conjugate: bool = False
    negative: bool = False

    def to_source(self) -> str:
        """Return the call that makes this tensor from the bundle's storages."""
        text = f"read.tensor({self.storage}, torch.{self.dtype}, {self.shape}, {self.stride}"
        text += f", offset={self.offset}" if self.offset else ""
        flags = [name for name in ("requires_grad", "parameter", "conjugate", "negative") if getattr(self, name)]
        return text + "".join(f", {name}=True" for name in flags) + ")"


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """A sparse tensor: its layout and the dense tensors it is made of."""

    layout: str
    shape: tuple[int, ...]
    parts: tuple[Dense, ...]
    coalesced: bool = False
    requires_grad: bool = False

    def to_source(self) -> str:
        """Return the call that makes this tensor from its parts."""
        parts = ", ".join(part.to_source() for part in self.parts)
        text = f"read.sparse(torch.{self.layout}, {self.shape}, {parts}"
        text += ", coalesced=True" if self.coalesced else ""
        return text + (", requires_grad=True)" if self.requires_grad else ")")


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A tensor subclass that takes itself apart: its class, its inner tensors and its context."""

    module: str
    name: str
    parts: tuple[tuple[str, Dense], ...]
    context: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool = False

    def to_source(self) -> str:
        """Return the call that puts the subclass together again."""
        parts = ", ".join(f"{name!r}: {part.to_source()}" for name, part in self.parts)
        text = f"read.wrapper({self.module!r}, {self.name!r}, {{{parts}}}, {self.context}, {self.shape}, {self.stride}"
        return text + (", requires_grad=True)" if self.requires_grad else ")")


@dataclass(frozen=True, kw_only=True)
class RandomGenerator:
    """A torch.Generator and the state it stands at."""

    device: str
    state: Dense

    def to_source(self) -> str:
        """Return the call that makes the generator."""
        return f"read.generator({self.device!r}, {self.state.to_source()})"


@dataclass(frozen=True, kw_only=True)
class Literal:
    """A value that Python source says exactly."""

    text: str

    def to_source(self) -> str:
        """Return the source itself."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """A size that the compiler knows by name: its value, and how it follows from other inputs, where it does."""

    value: int
    expression: str = ""

    def to_source(self) -> str:
        """Return the value it had."""
        return repr(self.value)


Value = Dense | Sparse | Wrapper | RandomGenerator | Literal | Symbol
KINDS: dict[str, type] = {
    "dense": Dense,
    "sparse": Sparse,
    "wrapper": Wrapper,
    "generator": RandomGenerator,
    "literal": Literal,
    "symbol": Symbol,
}
NAMES = {kind: name for name, kind in KINDS.items()}


def to_json(value: Value) -> dict[str, Any]:
    """Return a value as plain data."""
    facts: dict[str, Any] = {"kind": NAMES[type(value)]}
    for name, entry in vars(value).items():
        if isinstance(entry, Dense):
            facts[name] = to_json(entry)
        elif name == "parts" and isinstance(value, Sparse):
            facts[name] = [to_json(part) for part in value.parts]
        elif name == "parts" and isinstance(value, Wrapper):
            facts[name] = [[part_name, to_json(part)] for part_name, part in value.parts]
        else:
            facts[name] = list(entry) if isinstance(entry, tuple) else entry
    return facts


def from_json(facts: Mapping[str, Any]) -> Value:
    """Return a value from plain data; raises KeyError or TypeError where the data make none."""
    must_be(facts, Mapping)
    fields = {name: entry for name, entry in facts.items() if name not in ("kind", "parts", "state")}
    kind = KINDS[facts["kind"]]
    made = {name: record_field(kind, name, entry) for name, entry in fields.items()}
    if kind is Sparse:
        made["parts"] = tuple(part_from(part) for part in facts["parts"])
    elif kind is Wrapper:
        made["parts"] = tuple((str(name), part_from(part)) for name, part in facts["parts"])
    elif kind is RandomGenerator:
        made["state"] = part_from(facts["state"])
    value: Value = kind(**made)
    return value


def part_from(facts: Mapping[str, Any]) -> Dense:
    """Return a strided tensor from plain data."""
    part = from_json(facts)
    if not isinstance(part, Dense):
        raise TypeError("a part of a tensor is none")
    return part


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Bytes on a device, and a dtype to show them in. They never change: what runs gets a copy."""

    data: torch.Tensor
    device: str
    dtype: torch.dtype
    # The digest of its bytes, where it has been taken.
    known: str = field(default="", compare=False)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The digest of its bytes."""
        return self.known or fingerprint(self.data)


@dataclass
class Storages:
    """The storages that were met, each copied once, when it was first met."""

    found: list[Storage] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)
    _kept: list[torch.Tensor] = field(default_factory=list)

    def add(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage."""
        key = torchapi.storage_key(tensor)
        if key is None:
            raise CaseError("a tensor without a storage cannot be written", hint="pass a plain tensor in its place")
        if key not in self._places:
            self._places[key] = len(self.found)
            self._kept.append(tensor)  # While it lives, no other storage can take its identity.
            self.found.append(copied_storage(tensor))
        return self._places[key]

    def dense(self, tensor: torch.Tensor) -> Dense:
        """Return the facts of a strided tensor."""
        return Dense(
            storage=self.add(tensor),
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(int(size) for size in tensor.shape),
            stride=tuple(int(step) for step in tensor.stride()),
            offset=int(tensor.storage_offset()),
            requires_grad=tensor.requires_grad,
            parameter=isinstance(tensor, torch.nn.Parameter),
            conjugate=tensor.is_conj(),
            negative=tensor.is_neg(),
        )


def copied_storage(tensor: torch.Tensor) -> Storage:
    """Copy the bytes behind a tensor to the CPU, all of them."""
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    data = torch.empty(size, dtype=torch.uint8, device="cpu")
    if size:
        data.untyped_storage().copy_(storage)
    shown = tensor.dtype if size % tensor.dtype.itemsize == 0 else torch.uint8
    return Storage(data=data, device=str(tensor.device), dtype=shown)


def encode(value: Any, name: str, storages: Storages) -> Value:
    """Return an input as facts, or refuse."""
    if isinstance(value, torch.Tensor):
        return encode_tensor(value, name, storages)
    if isinstance(value, torch.SymInt):
        return Symbol(value=size_of(value, name))
    if isinstance(value, torch.SymFloat | torch.SymBool):
        value = torchapi.symbol_hint(value)
    if isinstance(value, torch.Generator):
        return RandomGenerator(device=str(value.device), state=storages.dense(value.get_state()))
    text = literal(value)
    if text is None:
        raise CaseError(
            f"the input {name} is a {type(value).__name__}, which cannot be written down",
            hint="make it a tensor or a number, or build it inside the model",
        )
    return Literal(text=text)


def size_of(value: Any, name: str) -> int:
    """Return the value of a size, symbolic or not, or refuse one that has none."""
    size = torchapi.symbol_hint(value) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value
    if size is None:
        raise CaseError(
            f"the input {name} is a size without a value, as of a nested tensor",
            hint="convert nested tensors to dense ones before the compiled part",
        )
    return int(size)


def encode_tensor(tensor: torch.Tensor, name: str, storages: Storages) -> Value:
    """Return a tensor of any layout or class as facts, or refuse."""
    if torchapi.is_fake(tensor):
        raise CaseError(
            f"the input {name} has a shape but no values",
            hint="capture while the model runs on real tensors",
        )
    if torchapi.is_plain(tensor):
        return storages.dense(tensor)
    if torchapi.is_wrapper(type(tensor)) and not tensor.is_nested:
        return encode_wrapper(tensor, name, storages)
    inner = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        parts = torchapi.sparse_parts(inner)
    elif tensor.layout in COMPRESSED:
        parts = [*(getattr(inner, part)() for part in COMPRESSED[tensor.layout]), inner.values()]
    else:
        what = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else type(tensor).__name__
        raise CaseError(
            f"the input {name} is a {what} tensor ({tensor.layout}), which cannot be written down exactly",
            hint="convert it to a dense tensor before the compiled part",
        )
    return Sparse(
        layout=str(tensor.layout).removeprefix("torch."),
        shape=tuple(tensor.shape),
        parts=tuple(storages.dense(part) for part in parts),
        coalesced=tensor.layout == torch.sparse_coo and tensor.is_coalesced(),
        requires_grad=tensor.requires_grad,
    )


def encode_wrapper(tensor: Any, name: str, storages: Storages) -> Wrapper:
    """Take a tensor subclass apart into plain tensors and a context that source can say."""
    kind = type(tensor)
    names, context = tensor.__tensor_flatten__()
    text = literal(context)
    parts = [(str(part), getattr(tensor, part)) for part in names]
    importable = kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__
    if text is None or not importable or not all(torchapi.is_plain(part) for _, part in parts):
        raise CaseError(
            f"the input {name} is a {kind.__name__}, which cannot be rebuilt from its inner tensors",
            hint="its class must be importable, its inner tensors plain and its context numbers, strings or None",
        )
    return Wrapper(
        module=kind.__module__,
        name=kind.__qualname__,
        parts=tuple((part, storages.dense(value)) for part, value in parts),
        context=text,
        shape=tuple(int(size) for size in tensor.shape),
        stride=tuple(int(step) for step in tensor.stride()),
        requires_grad=tensor.requires_grad,
    )


def literal(value: Any) -> str | None:
    """Return source that makes exactly this value, or None where there is none."""
    if value is None or isinstance(value, bool | int | str | bytes) or value is Ellipsis:
        return repr(value) if type(value) in (type(None), bool, int, str, bytes, type(Ellipsis)) else None
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) is complex:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, slice):
        ends = [literal(end) for end in (value.start, value.stop, value.step)]
        return None if None in ends else f"slice({', '.join(map(str, ends))})"
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if type(value) in (tuple, list):
        entries = [literal(entry) for entry in value]
        if None in entries:
            return None
        text = ", ".join(map(str, entries))
        return f"[{text}]" if type(value) is list else f"({text},)" if len(entries) == 1 else f"({text})"
    if type(value) is dict:
        pairs = [(literal(key), literal(entry)) for key, entry in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return "{" + ", ".join(f"{key}: {entry}" for key, entry in pairs) + "}"
    return None
