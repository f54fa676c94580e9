"""Integers made of floats that they cannot hold: what comes of that is not defined, and no two compilers need agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchparity import torchapi

# Integers that can be compared and chosen from.
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def undefined_in(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the result of an operation that holds such integers, and where; None where nothing does."""
    if name == "copy_":
        target, source = args[0], args[1]
    elif name == "_to_copy" or kwargs.get("dtype") in WHOLE:
        target, source = outputs, args[0] if args else None
    else:
        return None
    if not isinstance(target, torch.Tensor) or not isinstance(source, torch.Tensor):
        return None
    if target.dtype not in WHOLE or not source.is_floating_point() or not target.numel() or not source.numel():
        return None
    if not torchapi.in_memory(target) or not torchapi.in_memory(source):
        return None
    limits = torch.iinfo(target.dtype)
    cut = source.detach().double().trunc()
    where = ~((cut >= limits.min) & (cut < float(limits.max) + 1.0))
    if not bool(where.any()):
        return None
    if name in ("copy_", "_to_copy"):
        return target, where.expand_as(target)
    return target, torch.ones_like(target, dtype=torch.bool)  # A sum, say: all of it may be made of them.


def spoil(target: torch.Tensor, where: torch.Tensor) -> None:
    """Put other integers there, as far off as can be."""
    limits = torch.iinfo(target.dtype)
    other = torch.where(target > (limits.min + limits.max) // 2, limits.min, limits.max).to(target.dtype)
    target.copy_(torch.where(where, other, target))
