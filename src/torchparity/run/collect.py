"""What a call leaves behind, leaf by leaf: outputs, gradients, state, inputs, optimizer state."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import torch

from torchparity import torchapi
from torchparity.compare.leaves import Leaf, children_of, class_of, parts_of, walk
from torchparity.compare.matrices import identical, same_on_device
from torchparity.run.python_state import SCALARS
from torchparity.run.state import CallInputs, ModelState

Named = list[tuple[str, torch.Tensor]]


def input_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Named:
    """Return (path, tensor) of the tensors among a call's arguments."""
    return [(path, leaf) for path, leaf in input_leaves(args, kwargs).items() if isinstance(leaf, torch.Tensor)]


def input_leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return everything inside a call's arguments by path."""
    return {path.removeprefix("."): leaf for path, leaf in walk({"args": args, "kwargs": kwargs})}


def output_leaves(prefix: str, outputs: Any, inputs: Named, state: ModelState) -> Iterator[Leaf]:
    """Yield the structure of the outputs, and every output with its strides and what it aliases."""
    yield Leaf(path=f"{prefix}structure", role="structure", value=structure_of(outputs))
    places: dict[int, tuple[str, int]] = {}
    named = [*inputs, *((f"{role}.{name}", tensor) for name, role, tensor in state.named())]
    for path, tensor in named:
        remember(places, path, tensor)
    # How an object (a key-value cache) lays out what it holds is its own business.
    visible = {path for path, _ in walk(outputs, "output", into_objects=False)}
    for path, value in walk(outputs, "output"):
        yield _output(prefix + path, value, places, visible=path in visible)
        if isinstance(value, torch.Tensor):
            remember(places, path, value)


def remember(places: dict[int, tuple[str, int]], path: str, tensor: torch.Tensor) -> None:
    """Note who was first seen with a storage, and where in it."""
    key = torchapi.storage_key(tensor) if torchapi.is_plain(tensor) else None
    if key is not None and tensor.numel():
        places.setdefault(key, (path, int(tensor.storage_offset())))


def structure_of(value: Any, depth: int = 0) -> str:
    """Return the types, keys and lengths of a result, without its values."""
    if isinstance(value, torch.Tensor):
        return class_of(value)
    children = None if isinstance(value, (*SCALARS, np.ndarray, np.generic)) or depth > 8 else children_of(value, "")
    if children is None:
        return type(value).__name__
    parts = ", ".join(f"{path} {structure_of(child, depth + 1)}".strip() for path, child in children)
    return f"{type(value).__name__}({parts})"


def _output(path: str, value: Any, places: dict[int, tuple[str, int]], *, visible: bool) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(path=path, role="output", value=value)
    value = torchapi.local_part(value)
    key = torchapi.storage_key(value) if torchapi.is_plain(value) and value.numel() else None
    place = places.get(key) if key is not None else None
    aliases: tuple[str, ...] = ()
    if place is not None:
        name, offset = place
        apart = int(value.storage_offset()) - offset
        aliases = (f"{name} at {apart:+d}" if apart else name,)
    strided = value.layout == torch.strided and not value.is_nested
    held = value.detach()
    return Leaf(
        path=path,
        role="output",
        value=held.clone() if place is not None else held,
        strides=value.stride() if strided and visible else None,
        aliases=aliases,
        requires_grad=value.requires_grad,
        is_leaf=value.is_leaf,
        original=held if place is not None else None,
    )


def differentiated(inputs: Named, state: ModelState) -> dict[str, torch.Tensor]:
    """Return the parameters and inputs that get a gradient, by the path that the gradient has as a leaf."""
    named = [*((name, tensor) for name, _, tensor in state.named()), *inputs]
    return {
        f"grad.{name}": tensor
        for name, tensor in named
        if tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)
    }


def gradient_leaves(prefix: str, inputs: Named, state: ModelState, handed: Container[str] = ()) -> Iterator[Leaf]:
    """Yield the gradients of parameters and inputs, taken away from their tensors one by one; not those handed on."""
    for path, tensor in differentiated(inputs, state).items():
        if path in handed:
            continue
        gradient, tensor.grad = tensor.grad, None
        gradient = None if gradient is None else torchapi.local_part(gradient)
        yield Leaf(path=prefix + path, role="gradient", value=gradient)


def state_leaves(prefix: str, state: ModelState) -> Iterator[Leaf]:
    """Yield parameters, buffers, and attributes of modules that the run has changed."""
    named = list(state.named())
    held = [(name, role, tensor, state.snapshot.original(tensor)) for name, role, tensor in named]
    alike = same_on_device([(tensor, tensor if original is None else original) for *_, tensor, original in held])
    for (name, role, tensor, original), known in zip(held, alike, strict=True):
        yield _changed(f"{prefix}{role}.{name}", role, tensor, original, known=known)
    for path, value, original in state.attributes({id(tensor) for *_, tensor in named}):
        if isinstance(value, torch.Tensor):
            yield _changed(f"{prefix}attribute.{path}", "attribute", value, original)
        else:
            yield Leaf(path=f"{prefix}attribute.{path}", role="attribute", value=value)


def argument_leaves(
    prefix: str, call: CallInputs, before: Named, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Leaf]:
    """Yield the inputs as the call leaves them, with what it has put into lists and mappings it was given."""
    originals = input_leaves(call.args, call.kwargs)
    seen = dict(before)
    after = input_leaves(args, kwargs)
    for path, value in {**seen, **after}.items():
        original = originals.get(path)
        if isinstance(value, torch.Tensor) and value is original:
            continue  # The model's own state, passed as an argument.
        if isinstance(value, torch.Tensor):
            known = isinstance(original, torch.Tensor) and seen.get(path) is value
            yield _changed(f"{prefix}input.{path}", "input", value, original if known else None)
        elif isinstance(value, SCALARS) and (path not in originals or value != original):
            yield Leaf(path=f"{prefix}input.{path}", role="input", value=value)


def _changed(path: str, role: str, tensor: torch.Tensor, original: Any, *, known: bool = False) -> Leaf:
    """Return a leaf by whether it holds what it held, which may be `known`."""
    tensor = torchapi.local_part(tensor)
    original = torchapi.local_part(original) if isinstance(original, torch.Tensor) else original
    if isinstance(original, torch.Tensor) and (known or unchanged(tensor, original)):
        return Leaf(path=path, role=role, value=original, changed=False)
    return Leaf(path=path, role=role, value=tensor.detach())


def optimizer_leaves(prefix: str, optimizer: torch.optim.Optimizer, state: ModelState) -> Iterator[Leaf]:
    """Yield what the optimizer keeps for each parameter."""
    for name, _, tensor in state.named():
        for path, value in walk(optimizer.state.get(tensor, {}), f"optimizer.{name}"):
            held = torchapi.local_part(value).detach() if isinstance(value, torch.Tensor) else value
            yield Leaf(path=prefix + path, role="optimizer", value=held)


def unchanged(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Tell whether a tensor holds what it held: the same bits, or the same numbers."""
    if tensor.dtype != original.dtype or tensor.layout != original.layout:
        return False
    if not torchapi.has_values(tensor):
        return True
    if tensor.layout != torch.strided or tensor.is_nested:
        left, right = parts_of(tensor.detach()), parts_of(original.detach())
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(identical(one, other) for (_, one), (_, other) in pairs)
    return identical(tensor, original)
