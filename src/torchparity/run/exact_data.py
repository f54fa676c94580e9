"""Exact data in the place of a model's own: small integers, few enough of them that sums stay small."""

from __future__ import annotations

import contextlib
import math

import torch

from torchparity.run.other_data import changeable, with_data
from torchparity.run.subject import Subject

# About so many terms of a sum are not zero.
TERMS = 8
# Values that are exact as they are: a mask, counts, minus infinity.
SMALL = 256


def with_exact_data(subject: Subject, seed: int) -> contextlib.AbstractContextManager[Subject]:
    """Yield a subject whose parameters and inputs are small integers; the model is given back as it was found."""
    generator = torch.Generator("cpu").manual_seed(seed % 2**63)

    def exact(tensor: torch.Tensor, role: str) -> torch.Tensor | None:
        scale = role == "buffer" or (role != "input" and tensor.dim() < 2)
        return exact_values(tensor, generator, positive=scale) if fillable(tensor) else None

    return with_data(subject, exact)


def fillable(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds floats that are not exact already."""
    if not changeable(tensor):
        return False
    values = tensor.detach()
    small = torch.isinf(values) | ((values == values.round()) & (values.abs() <= SMALL))
    return not bool(small.all())


def exact_values(tensor: torch.Tensor, generator: torch.Generator, *, positive: bool) -> torch.Tensor:
    """Return small integers, most of them zero where long sums are made of them; powers of two for scales."""
    shape = tuple(tensor.shape)
    if positive:
        return 2.0 ** torch.randint(0, 2, shape, generator=generator, device="cpu").to(tensor.device, torch.float64)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 1
    share = min(0.75, TERMS / max(1, fan_in)) if len(shape) > 1 else 0.75
    signs = torch.randint(0, 2, shape, generator=generator, device="cpu") * 2 - 1
    sizes = torch.randint(1, 3, shape, generator=generator, device="cpu")
    kept = torch.rand(shape, generator=generator, device="cpu") < share
    return (signs * sizes * kept).to(tensor.device, torch.float64)
