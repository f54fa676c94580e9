"""Other data in the place of a model's own, for as long as somebody looks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import walk
from torchparity.run.state import ModelState
from torchparity.run.subject import Subject

# The values that a tensor of some role is given (parameter, buffer, tensor, input); nothing where it keeps its own.
Fill = Callable[[torch.Tensor, str], torch.Tensor | None]
# The least share of itself that a number keeps.
KEPT_AT_LEAST = 0.5


@contextlib.contextmanager
def with_data(subject: Subject, fill: Fill) -> Iterator[Subject]:
    """Yield a subject with other parameters, in their own memory, and inputs; the model is given back as it was."""
    state = ModelState(subject.model)
    memo: dict[int, Any] = {id(module): module for root in state.modules.values() for module in root.modules()}
    try:
        with torch.no_grad():
            for _, role, tensor in state.named():
                values = fill(tensor, role)
                if values is not None:
                    tensor.copy_(values)
            held = {id(tensor) for _, _, tensor in state.named()}
            for _, leaf in walk(subject.calls()):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
                    values = fill(leaf, "input") if id(leaf) not in held else None
                    memo[id(leaf)] = leaf if values is None else like_it(leaf, values)
                elif isinstance(leaf, torch.Generator):
                    memo[id(leaf)] = leaf
        yield replace(subject, args=(), kwargs={}, input_sets=[copy.deepcopy(call, memo) for call in subject.calls()])
    finally:
        state.release()


def with_other_data(subject: Subject, seed: int) -> contextlib.AbstractContextManager[Subject]:
    """Yield a subject in which every number is a little smaller, each by a share of its own.

    Signs, zeros and infinities stay. What has an order or a symmetry keeps it: there all numbers have one share. A mask
    of zeros and ones stays as it is.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def smaller(tensor: torch.Tensor, role: str) -> torch.Tensor | None:
        values = tensor.detach()
        if not changeable(tensor) or bool(((values == 0) | (values == 1)).all()):
            return None
        if tensor.device not in generators:
            generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed % 2**63)
        shape = () if has_order(values) else tensor.shape
        kept = torch.rand(shape, generator=generators[tensor.device], device=tensor.device)
        return values * (KEPT_AT_LEAST + (1 - KEPT_AT_LEAST) * kept).to(tensor.dtype)

    return with_data(subject, smaller)


def has_order(values: torch.Tensor) -> bool:
    """Tell whether numbers rise or fall along their last axis, or make a symmetric matrix."""
    if values.dim() == 0:
        return False
    steps = values[..., 1:] - values[..., :-1]
    if values.shape[-1] > 2 and (bool((steps >= 0).all()) or bool((steps <= 0).all())):
        return True
    return values.dim() > 1 and values.shape[-1] == values.shape[-2] and torch.equal(values, values.mT)


def changeable(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds floats that may be written to."""
    if not tensor.is_floating_point() or tensor.element_size() < 2 or not torchapi.in_memory(tensor):
        return False
    if tensor.is_inference():
        return False
    return tensor.numel() > 0 and not torchapi.overlaps_itself(tensor)


def like_it(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return values laid out as a tensor is."""
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(values).requires_grad_(tensor.requires_grad)
