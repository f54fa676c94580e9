"""A subject somewhere else: on another device, in another dtype, at another batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.errors import TargetError
from torchparity.run.subject import Inputs, Subject


def on_device(subject: Subject, device: str) -> Subject:
    """Move a model and its inputs to a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        told = str(error).strip().splitlines()[:1]
        raise TargetError(
            f"there is no device {device!r} here: {' '.join(told)[:300]}",
            hint="leave --device out, or use --device cpu",
        ) from error
    return moved(subject, lambda value: value.to(device), lambda model: model.to(device))


def in_dtype(subject: Subject, name: str) -> Subject:
    """Give a model, and its inputs that are of floating point, another dtype."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TargetError(f"{name!r} is no dtype of a model", hint="use float32, float64, bfloat16 or float16")
    if not isinstance(subject.model, torch.nn.Module) and not any(
        isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for _, leaf in walk(subject.calls())
    ):
        raise TargetError(
            f"nothing of {subject.title()} can be made {name}", hint="leave the dtype out for this target"
        )
    return moved(
        subject,
        lambda value: (
            value.detach().to(dtype).requires_grad_(value.requires_grad) if value.is_floating_point() else value
        ),
        lambda model: model.to(dtype),
    )


def with_batch(subject: Subject, batch: int) -> Subject:
    """Call a model with so many rows."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
        raise TargetError(f"{batch!r} is no number of rows", hint="give a batch of 0 or more")
    calls = [at_batch(call, batch) for call in subject.calls()]
    if subject.input_sets:
        return replace(subject, input_sets=tuple(calls))
    return replace(subject, args=calls[0][0], kwargs=calls[0][1])


def at_batch(inputs: Inputs, batch: int) -> Inputs:
    """Return inputs cut or repeated to a batch: along dimension 0, in every tensor that has the first tensor's."""
    tensors = [leaf for _, leaf in walk(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    size = tensors[0].shape[0] if tensors else 0

    def resized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[0] != size or size == 0:
            return value
        rows = torch.arange(batch, device=value.device) % size
        return value.detach().index_select(0, rows).requires_grad_(value.requires_grad)

    args, kwargs = torchapi.tree_map(resized, inputs)
    return args, kwargs


def moved(
    subject: Subject,
    tensor: Callable[[torch.Tensor], torch.Tensor],
    model: Callable[[torch.nn.Module], torch.nn.Module],
) -> Subject:
    """Return a subject whose model and whose inputs were changed."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor(value)
        if isinstance(value, dict):
            return {key: move(item) for key, item in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(move(item) for item in value)
        return value

    return replace(
        subject,
        model=model(subject.model) if isinstance(subject.model, torch.nn.Module) else subject.model,
        args=move(tuple(subject.args)),
        kwargs=move(dict(subject.kwargs)),
        input_sets=tuple(move(entry) for entry in subject.input_sets),
    )
