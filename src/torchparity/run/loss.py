"""From outputs to gradients: the seeded projection, the mean, or the user's own loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchparity.compare.leaves import walk
from torchparity.errors import UsageError

Loss = Callable[[Any], torch.Tensor] | str
PROJECTION = "projection"
MEAN = "mean"


def backward(outputs: Any, loss: Loss, *, seed: int) -> torch.Tensor | None:
    """Run the backward pass; return the loss where there is one number, None for the projection.

    The projection hands every float output its own random tangent. A mean has no gradient through
    softmax or a layer norm; a random direction has one through everything.
    """
    if loss == PROJECTION:
        project(outputs, seed=seed)
        return None
    value = reduce_to_mean(outputs) if loss == MEAN else loss(outputs)  # type: ignore[operator]
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise UsageError(
            f"the loss is {describe(value)}, not one number",
            hint="return a scalar tensor from the loss, or leave it out",
        )
    if value.requires_grad:
        value.backward()
    return value.detach()


def project(outputs: Any, *, seed: int) -> None:
    """Push a seeded random tangent back through every float output that has a gradient."""
    tensors, tangents = [], []
    generator = torch.Generator().manual_seed(seed)
    for _, leaf in walk(outputs):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            shape = leaf.to_dense().shape if leaf.layout != torch.strided else leaf.shape
            drawn = torch.randn(shape, generator=generator, dtype=torch.float32)
            if leaf.is_complex():
                drawn = torch.complex(drawn, torch.randn(shape, generator=generator))
            tensors.append(leaf.to_dense() if leaf.layout != torch.strided else leaf)
            tangents.append(drawn.to(device=leaf.device, dtype=leaf.dtype))
    if tensors:
        torch.autograd.backward(tensors, tangents)


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
    if not parts:
        raise UsageError("the model returns nothing to take a mean of", hint="give a loss of your own")
    total = torch.stack([reduce_to_mean(part) for part in parts if part is not None]).sum()
    return total / len(parts)


def describe(value: Any) -> str:
    """Name a value in an error message."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
