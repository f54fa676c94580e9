"""What a reference says of a result, part by part."""

from __future__ import annotations

import torch

from torchparity import torchapi
from torchparity.compare.leaves import parts_of
from torchparity.run.reference import Reference


def truths_of(reference: Reference, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the float64 value of each part of a result that has one; a wrapper's parts have shadows of their own."""
    if torchapi.takes_apart(type(value)) and not value.is_nested:
        found = {suffix: reference.value(part) for suffix, part in parts_of(value)}
        return {suffix: truth for suffix, truth in found.items() if truth is not None}
    whole = reference.value(value)
    return dict(parts_of(whole)) if whole is not None else {}
