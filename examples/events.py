"""A small transformer over events in time. Its first line counts tenths of a second, and inductor counts them wrongly.

    torchparity diagnose examples/events.py:make

`time // 0.1` in float32 is one too many on inductor where the time is a whole number of tenths
(pytorch/pytorch issue 197895), so the model looks up the wrong rows of its embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Attention over earlier events, then a small network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, think, and add both."""
        batch, length, width = x.shape
        query, key, value = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Events(nn.Module):
    """Predicts the kind of the next event from the kinds and times of those before it."""

    def __init__(self, kinds: int = 24, slots: int = 128, width: int = 32, blocks: int = 4) -> None:
        super().__init__()
        self.kind = nn.Embedding(kinds, width)
        self.slot = nn.Embedding(slots, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(blocks)])
        self.head = nn.Linear(width, kinds)

    def forward(self, kinds: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next event at every place."""
        slots = (times // 0.1).long().clamp(0, self.slot.num_embeddings - 1)
        return self.head(self.blocks(self.kind(kinds) + self.slot(slots)))


def make() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return the model and a batch of events, whole seconds apart."""
    torch.manual_seed(0)
    times = torch.randint(0, 2, (4, 12)).float().cumsum(-1)
    return Events().eval(), (torch.randint(0, 24, (4, 12)), times)
