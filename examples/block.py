"""One block of a transformer with dropout: right on inductor, in training too.

torchparity check examples/block.py:make --train
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Attention with dropout."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, and add."""
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, width)))


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the block and an input."""
    torch.manual_seed(0)
    return Block(), (torch.randn(2, 16, 64),)
