"""A kernel as users write them: it adds into a tensor of zeros, and no operation of torch tells of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def doubling_kernel(source, target, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + place, place < count)
    tl.atomic_add(target + place, 2 * value, place < count)


def doubled(source):
    target = torch.zeros_like(source)
    doubling_kernel[(triton.cdiv(source.numel(), 256),)](source, target, source.numel(), BLOCK=256)
    return target
