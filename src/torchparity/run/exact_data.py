"""Exact data in the place of a model's own: small integers, few enough of them that sums stay small."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.run.state import ModelState
from torchparity.run.subject import Subject

# About so many terms of a sum are not zero.
TERMS = 8
# Values that are exact as they are: a mask, counts, minus infinity.
SMALL = 256


@contextlib.contextmanager
def with_exact_data(subject: Subject, seed: int) -> Iterator[Subject]:
    """Yield a subject whose parameters and inputs are small integers; the model is given back as it was found."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    state = ModelState(subject.model)
    memo: dict[int, Any] = {id(module): module for root in state.modules.values() for module in root.modules()}
    try:
        with torch.no_grad():
            for _, role, tensor in state.named():
                if fillable(tensor):
                    tensor.copy_(exact_values(tensor, generator, positive=role == "buffer" or tensor.dim() < 2))
            held = {id(tensor) for _, _, tensor in state.named()}
            for _, leaf in walk(subject.calls()):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
                    memo[id(leaf)] = leaf if id(leaf) in held or not fillable(leaf) else exact_copy(leaf, generator)
                elif isinstance(leaf, torch.Generator):
                    memo[id(leaf)] = leaf
        yield replace(subject, args=(), kwargs={}, input_sets=[copy.deepcopy(call, memo) for call in subject.calls()])
    finally:
        state.release()


def fillable(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds floats that are not exact already."""
    if not tensor.is_floating_point() or tensor.element_size() < 2 or not torchapi.in_memory(tensor):
        return False
    if tensor.numel() == 0 or torchapi.overlaps_itself(tensor):
        return False
    values = tensor.detach()
    small = torch.isinf(values) | ((values == values.round()) & (values.abs() <= SMALL))
    return not bool(small.all())


def exact_copy(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a copy of an input with exact values, laid out as it is."""
    values = exact_values(tensor, generator, positive=False)
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    made.copy_(values)
    return made.requires_grad_(tensor.requires_grad)


def exact_values(tensor: torch.Tensor, generator: torch.Generator, *, positive: bool) -> torch.Tensor:
    """Return small integers, most of them zero where long sums are made of them; powers of two for scales."""
    shape = tuple(tensor.shape)
    if positive:
        return 2.0 ** torch.randint(0, 2, shape, generator=generator).to(tensor.device, torch.float64)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 1
    share = min(0.75, TERMS / max(1, fan_in)) if len(shape) > 1 else 0.75
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    sizes = torch.randint(1, 3, shape, generator=generator)
    kept = torch.rand(shape, generator=generator) < share
    return (signs * sizes * kept).to(tensor.device, torch.float64)
