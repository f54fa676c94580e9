"""The random numbers of the noise: drawn once for a check, or before it."""

from __future__ import annotations

import torch

BANK_SIZE = 1 << 20
# What was drawn before any check asked for it, by seed, dtype and steps. Nobody writes to it.
_ahead: dict[tuple[int, torch.dtype, int], torch.Tensor] = {}


class NoiseBank:
    """Random integers, drawn once for a check."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._banks: dict[tuple[torch.device, torch.dtype, int], torch.Tensor] = {}

    def get(self, device: torch.device, dtype: torch.dtype, steps: int) -> torch.Tensor:
        """Return integers of spread `steps` (for one step 0, but -1 and 1 in one of eight each), or normal floats."""
        key = (device, dtype, steps)
        if key not in self._banks:
            drawn = _ahead.get((self.seed, dtype, steps))
            self._banks[key] = (_draw(self.seed, dtype, steps) if drawn is None else drawn).to(device)
        return self._banks[key]


def _draw(seed: int, dtype: torch.dtype, steps: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed * 7919 + steps)
    size = (BANK_SIZE,)
    if dtype.is_floating_point:
        drawn = torch.randn(size, generator=generator, dtype=torch.float32, device="cpu") / 2
    elif steps == 1:
        dice = torch.randint(0, 8, size, generator=generator, device="cpu")
        drawn = (dice == 1).long() - (dice == 0).long()
    else:
        drawn = torch.randint(-steps, steps + 1, size, generator=generator, device="cpu")
    return drawn.to(dtype)


def noise_seed(seed: int) -> int:
    """Return the seed of the noise of a check: what a model draws is no part of it."""
    return seed + 1


def draw_ahead(seed: int) -> None:
    """Have the banks of a check with a seed ready in this process, and in those that are forked from it."""
    bits = [(dtype, steps) for dtype in (torch.int16, torch.int32, torch.int64) for steps in (1, 2)]
    for dtype, steps in ((torch.float32, 0), *bits):
        _ahead[seed, dtype, steps] = _draw(seed, dtype, steps)
