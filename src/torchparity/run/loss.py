"""From outputs to gradients: the seeded projection, the mean, or the user's own loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchparity.compare.leaves import walk
from torchparity.errors import UsageError
from torchparity.request import MEAN

Loss = Callable[[Any], torch.Tensor] | str
Tangents = tuple[list[torch.Tensor], list[torch.Tensor]]


def tangents_of(outputs: Any, *, seed: int) -> Tangents:
    """Return every float output that has a gradient, and a seeded random tangent for each.

    A mean has no gradient through softmax or a layer norm; a random direction has one through everything.
    """
    tensors: list[torch.Tensor] = []
    for _, leaf in walk(outputs):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            for tensor in differentiable_parts(leaf):
                tensors.append(tensor)
    drawn = drawn_tangents(
        tuple((tuple(tensor.shape), tensor.is_complex(), drawn_on(tensor)) for tensor in tensors), seed
    )
    tangents = [one.to(device=tensor.device, dtype=tensor.dtype) for one, tensor in zip(drawn, tensors, strict=True)]
    return tensors, [one.clone() if one is held else one for one, held in zip(tangents, drawn, strict=True)]


@functools.lru_cache(maxsize=2)
def drawn_tangents(shapes: tuple[tuple[tuple[int, ...], bool, str], ...], seed: int) -> list[torch.Tensor]:
    """Draw numbers for tensors of some shapes, on some devices; every run of a check asks for the same ones."""
    generators: dict[str, torch.Generator] = {}
    found = []
    for shape, complex_numbers, device in shapes:
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        draw = functools.partial(torch.randn, shape, generator=generators[device], dtype=torch.float32, device=device)
        found.append(torch.complex(draw(), draw()) if complex_numbers else draw())
    return found


def drawn_on(tensor: torch.Tensor) -> str:
    """Return where a tensor's tangent is drawn: a large one takes a CPU longer than the GPU takes for the step."""
    return str(tensor.device) if tensor.device.type == "cuda" else "cpu"


def differentiable_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return dense tensors through which a gradient reaches all of a sparse or nested one."""
    if tensor.is_nested:
        return [tensor.values()] if tensor.layout == torch.jagged else list(tensor.unbind())
    return [tensor.to_dense()] if tensor.layout != torch.strided else [tensor]


def scalar_loss(outputs: Any, loss: Loss) -> torch.Tensor:
    """Run the backward pass from one number; return that number."""
    value = value_of_loss(outputs, loss)
    if value.requires_grad:
        value.backward()
    return value.detach()


def value_of_loss(outputs: Any, loss: Loss) -> torch.Tensor:
    """Return the one number that a loss makes of the outputs."""
    value = reduce_to_mean(outputs) if loss == MEAN else loss(outputs)  # type: ignore[operator]
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise UsageError(
            f"the loss is {describe(value)}, not one number",
            hint="return a scalar tensor from the loss, or leave it out",
        )
    return value


def reduce_to_mean(outputs: Any) -> torch.Tensor:
    """Average everything: tensors, sequences, mappings, model outputs (their logits), distributions (their mean)."""
    if isinstance(outputs, torch.Tensor):
        return outputs.sum() / outputs.numel()
    if isinstance(outputs, torch.distributions.Distribution):
        return outputs.mean.sum()
    if hasattr(outputs, "logits") and isinstance(outputs.logits, torch.Tensor):
        return reduce_to_mean(outputs.logits)
    parts: Sequence[Any]
    if isinstance(outputs, Mapping):
        parts = list(outputs.values())
    elif isinstance(outputs, list | tuple):
        parts = outputs
    else:
        raise UsageError(
            f"there is no mean of {describe(outputs)}",
            hint="give a loss of your own: a function from the outputs to a scalar tensor",
        )
    if all(part is None for part in parts):
        raise UsageError("the model returns nothing to take a mean of", hint="give a loss of your own")
    total = torch.stack([reduce_to_mean(part) for part in parts if part is not None]).sum()
    return total / len(parts)


def describe(value: Any) -> str:
    """Name a value in an error message."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None:
        return "None"
    return f"a {type(value).__name__}"
