"""`make demo`: a right compiler, a compiler with a fault planted in it, and a real difference of inductor."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import torchparity
from torchparity.faults import plant
from torchparity.report.terminal import render

warnings.filterwarnings("ignore")


class Block(nn.Module):
    """One block of a small transformer, with dropout."""

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


def whole_steps(distance: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Count how many whole steps fit into a distance."""
    return torch.floor_divide(distance, step)


def main() -> None:
    """Run three checks and print what each says."""
    console = Console(width=110)
    torch.manual_seed(0)
    model, inputs = Block(), (torch.randn(2, 16, 64),)

    console.rule("1. a transformer block with dropout, trained, on inductor: right")
    render(torchparity.check(model, inputs, train=True), console, leaves=4)

    console.rule("2. the same block, one gradient of the backward graph scaled by 1.00001: wrong")
    wrong = plant("scale_tiny", where="backward", site=3)
    render(torchparity.check(model, inputs, backend=wrong, train=True), console, leaves=4)
    console.print(f"  (planted at {wrong.planted.operation if wrong.planted else 'nowhere'})\n")

    console.rule("3. float floor division on inductor: a real difference (pytorch/pytorch issue 197895)")
    step = torch.tensor([0.1, 0.2, 0.3, 0.7]).repeat(64)
    distance = torch.randint(1, 50, (256,)).float() * step
    render(torchparity.check(whole_steps, (distance, step)), console, leaves=4)


if __name__ == "__main__":
    main()
