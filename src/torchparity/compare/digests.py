"""A leaf by its bits: whoever gives the same again need not be judged again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.checksum import fingerprint
from torchparity.compare.leaves import Leaf
from torchparity.compare.matrices import row_of_bytes, same_bytes

EAGERS = "eager's own bits"


@dataclass(frozen=True)
class Mark:
    """All that a judgement sees of a leaf, its bits by their digest."""

    facts: Leaf
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    digest: int | str


def mark_of(leaf: Leaf, eager: Any = None) -> Mark | None:
    """Return the mark of a leaf that holds plain numbers; None where these do not lie in memory one after the other.

    Bits that are eager's own, as with compilers that call eager's kernels they are, need no digest.
    """
    value = leaf.value
    row = row_of_bytes(value) if isinstance(value, torch.Tensor) else None
    if row is None:
        return None
    digest = EAGERS if row.device.type == "cpu" and _are_bytes_of(row, eager) else digest_of(row)
    if digest is None:
        return None
    facts = replace(leaf, value=type(value), original=None)
    return Mark(facts, value.dtype, tuple(value.shape), value.device, digest)


def _are_bytes_of(row: torch.Tensor, eager: Any) -> bool:
    other = row_of_bytes(eager) if isinstance(eager, torch.Tensor) and eager.device == row.device else None
    return other is not None and same_bytes(row, other)


def digest_of(row: torch.Tensor) -> int | str | None:
    """Return the digest of a row of bytes; None where taking it would take as long as looking at what they mean."""
    if row.device.type == "cpu":
        return fingerprint(row)
    kernels = digest_kernels(row.device.type)
    return None if kernels is None else int(kernels.digest(row))


def digest_kernels(kind: str) -> Any:
    """Return what takes digests on devices that Triton knows; None where it is not to be had."""
    return torchapi.working_kernels(kind, "torchparity.compare.digest_kernels")
