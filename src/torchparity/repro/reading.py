"""The runtime of every `repro.py`: makes the inputs, and turns the printed graph back into a graph.

What stands here is printed into each script, so that it runs with torch alone; we run it from there too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchparity import torchapi


class Reader:
    """Makes fresh tensors from the storages in tensors.safetensors, aliasing and strides included."""

    def __init__(self, blobs: Mapping[int, torch.Tensor], devices: Sequence[str]) -> None:
        self.blobs = blobs
        self.devices = devices
        self.storages: dict[int, torch.UntypedStorage] = {}

    def storage(self, number: int) -> torch.UntypedStorage:
        """Return a storage, the same one for the same number."""
        if number not in self.storages:
            self.storages[number] = self.blobs[number].clone().to(self.devices[number]).untyped_storage()
        return self.storages[number]

    def tensor(
        self, storage: int, dtype: torch.dtype, shape: Any, stride: Any, *, offset: int = 0, **flags: Any
    ) -> Any:
        """Return a view of one storage."""
        held = self.storage(storage)
        base = torch.empty(0, dtype=dtype, device=self.devices[storage])
        made = base.set_(held, offset, shape, stride)
        made = made.conj() if flags.get("conjugate") else made
        made = torchapi.negative_view(made) if flags.get("negative") else made
        if flags.get("parameter"):
            return torch.nn.Parameter(made, requires_grad=bool(flags.get("requires_grad")))
        return made.requires_grad_(bool(flags.get("requires_grad")))

    def sparse(self, layout: torch.layout, shape: Any, *parts: Any, coalesced: bool = False, **flags: Any) -> Any:
        """Return a sparse tensor."""
        if layout == torch.sparse_coo:
            made = torch.sparse_coo_tensor(
                parts[0], parts[1], shape, is_coalesced=coalesced or None, check_invariants=True
            )
        else:
            made = torch.sparse_compressed_tensor(
                parts[0], parts[1], parts[2], shape, layout=layout, check_invariants=True
            )
        return made.requires_grad_(bool(flags.get("requires_grad")))

    def wrapper(self, module: str, name: str, parts: Any, context: Any, shape: Any, stride: Any, **flags: Any) -> Any:
        """Put a tensor subclass together again."""
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        made = kind.__tensor_unflatten__(parts, context, torch.Size(shape), stride)
        return made.requires_grad_(bool(flags.get("requires_grad")))

    def generator(self, device: str, state: torch.Tensor) -> torch.Generator:
        """Return a random generator at the state it stood at."""
        made = torch.Generator(device)
        made.set_state(state)
        return made


def read_blobs(path: pathlib.Path, count: int) -> dict[int, torch.Tensor]:
    """Return the bytes of every storage in a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    blobs = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if end > len(data):
            raise ValueError(f"storage {name} lies outside the file")
        held = (
            torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
            if end > begin
            else torch.empty(0, device="cpu")
        )
        blobs[int(name)] = held.to(torch.uint8)
    if len(blobs) != count:
        raise ValueError(f"it holds {len(blobs)} storages, not {count}")
    return blobs


def attach(module: torch.nn.Module, path: str, value: Any) -> None:
    """Set an attribute at a dotted path."""
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(module, parent):
            setattr(module, parent, torch.nn.Module())
        module = getattr(module, parent)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def written(operation: Any) -> Any:
    """Return the method that records an operation in place."""
    return lambda self, *given: self.tracer.create_proxy("call_function", operation, (self, *given), {})


IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift setitem".split()
# A value that can be written to where it lies: by `x[0] = 1`, which plain tracing refuses, and by `x += 1`, of which it
# makes another value.
Written = type("Written", (torch.fx.Proxy,), {f"__{name}__": written(getattr(operator, name)) for name in IN_PLACE})


class Tracer(torch.fx.Tracer):
    """Turns the body of a higher-order operator, given as code, back into the graph that it was."""

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """Let values be written to."""
        made: torch.fx.Proxy = Written(node, self)
        return made

    def create_arg(self, a: Any) -> Any:
        """Let bodies hold bodies."""
        if isinstance(a, torch.nn.Module):
            names = [name for name, module in self.root.named_modules() if module is a]
            return self.create_node("get_attr", names[0], (), {})
        return super().create_arg(a)


class CallsRecorded(TorchFunctionMode):
    """Records calls that take no tensor, which tracing alone would run instead (factories, autocast switches)."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call."""
        # Making a device is no operation; torch 2.11 asks about it all the same.
        if func is torch.device or any(
            isinstance(leaf, torch.fx.Proxy) for leaf in torchapi.tree_leaves((args, kwargs))
        ):
            return func(*args, **(kwargs or {}))
        return self.tracer.create_proxy("call_function", func, tuple(args), dict(kwargs or {}))


@contextlib.contextmanager
def recorded_operators(tracer: Tracer) -> Any:
    """Record calls of higher-order operators too, before these look at their arguments."""
    kinds = {kind for entry in torchapi.higher_order_operators() for kind in type(entry).__mro__}
    held = {kind: vars(kind)["__call__"] for kind in kinds if "__call__" in vars(kind)}
    try:
        for kind in held:
            kind.__call__ = lambda self, *args, **kwargs: tracer.create_proxy("call_function", self, args, kwargs)  # type: ignore[method-assign]
        yield
    finally:
        for kind, call in held.items():
            kind.__call__ = call  # type: ignore[method-assign]


def as_graphs(module: torch.nn.Module) -> torch.nn.Module:
    """Turn the bodies inside a model, innermost first, into the graph modules that higher-order operators ask for."""
    for name, body in list(module.named_children()):
        as_graphs(body)
        if type(body) is not torch.nn.Module:
            tracer = Tracer()
            with CallsRecorded(tracer), recorded_operators(tracer):
                graph = tracer.trace(body)
            setattr(module, name, torch.fx.GraphModule(body, graph))
    return module


def available(device: str) -> bool:
    """Tell whether a device is here."""
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return True
    module = torch.get_device_module(wanted.type)
    return bool(module.is_available()) and (wanted.index or 0) < module.device_count()
