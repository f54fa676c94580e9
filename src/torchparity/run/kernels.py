"""Moving a result by about a rounding, on a GPU: one pass over memory, with random numbers made where they are needed.

The plain form stands in `noise.py`. Numbers are a hash of a seed and a place, so that nothing is drawn beforehand and
nothing waits. Imported where Triton is, and only for results on a device that it knows.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def hashed(place, seed):
    """Return 32 bits that depend on every bit of a place and of a seed."""
    low = place.to(tl.uint32) ^ tl.cast(seed, tl.uint32)
    bits = low + (place >> 32).to(tl.uint32) * 0x9E3779B9
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def uniform(bits):
    """Return a number in (0, 1]."""
    return ((bits >> 8).to(tl.float32) + 1.0) * (1.0 / (1 << 24))


@triton.jit
def energy_kernel(values, total, count, BLOCK: tl.constexpr):
    """Add up the squares of what is finite."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + place, place < count, other=0.0).to(tl.float64)
    value = tl.where(tl.abs(value) < float("inf"), value, 0.0)
    tl.atomic_add(total, tl.sum(value * value))


@triton.jit
def move_kernel(
    values, count, seed, mask, steps, lowest, highest, energy, unit, typical,
    INTEGER: tl.constexpr, CHAIN: tl.constexpr, MEASURED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add integers to the bits of what is neither exact nor at the end of its range; a chain adds to its scale."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + place, place < count, other=0.0)
    bits = value.to(INTEGER, bitcast=True)
    if tl.int64 == INTEGER:
        size = tl.abs(value)
    else:
        size = tl.abs(value.to(tl.float32))
    rounds = ((bits & tl.cast(mask, INTEGER)) != 0) & (size > lowest) & (size < highest)
    dice = hashed(place, seed)
    few = ((dice & 7) == 1).to(tl.int32) - ((dice & 7) == 0).to(tl.int32)
    many = ((dice >> 4) % tl.cast(2 * steps + 1, tl.uint32)).to(tl.int32) - steps
    drawn = tl.where(steps == 1, few, many)
    moved = (bits + tl.where(rounds, drawn, 0).to(INTEGER)).to(values.dtype.element_ty, bitcast=True)
    if CHAIN:
        one, two = uniform(hashed(place, seed + 0x3C6EF372)), uniform(hashed(place, seed + 0x1B873593))
        normal = tl.sqrt(-2.0 * tl.log(one)) * tl.cos(6.283185307179586 * two)
        if MEASURED:
            scale = tl.sqrt(tl.load(energy) / count)
        else:
            scale = typical
        scale = tl.maximum(size, scale.to(size.dtype)) * tl.load(unit).to(size.dtype)
        further = moved.to(size.dtype) + 0.5 * normal * scale
        moved = tl.where(rounds, further.to(values.dtype.element_ty), moved)
    tl.store(values + place, moved, place < count)


INTEGERS = {torch.float64: tl.int64, torch.float32: tl.int32, torch.float16: tl.int16, torch.bfloat16: tl.int16}


def move(
    values: torch.Tensor,
    *,
    seed: int,
    mask: int,
    steps: int,
    within: tuple[float, float],
    chain: torch.Tensor | None,
    typical: float | None,
) -> None:
    """Move the elements of a dense tensor, in memory order.

    `chain` is how far a clumsy sum may be off, times its scale: `typical`, or the root mean square of what is there.
    """
    count = values.numel()
    grid = (math.ceil(count / BLOCK),)
    measured = chain is not None and typical is None
    energy = torch.zeros(1, dtype=torch.float64, device=values.device) if measured else values
    if measured:
        energy_kernel[grid](values, energy, count, BLOCK=BLOCK)
    move_kernel[grid](
        values, count, seed, mask, steps, *within, energy, chain if chain is not None else values, typical or 0.0,
        INTEGER=INTEGERS[values.dtype], CHAIN=chain is not None, MEASURED=measured, BLOCK=BLOCK,
    )  # fmt: skip


def try_out(device: torch.device) -> None:
    """Raise where nothing can be compiled for a device: Triton wants a C compiler besides."""
    move(torch.ones(2, device=device), seed=1, mask=1, steps=1, within=(-1.0, 2.0), chain=None, typical=None)
