"""The models of the benchmarks: small, of many kinds, none of them written for one check."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Made = tuple[nn.Module, tuple[Any, ...]]


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))


class Transformer(nn.Module):
    """A language model whose output weights are its embedding."""

    def __init__(self, words: int = 97, width: int = 48, layers: int = 2, dropout: float = 0.1, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embedding.weight.T


class ConvNet(nn.Module):
    """Convolutions with batch norm, pooling and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        x = F.relu(x + self.norm2(self.deep(x)))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    """LSTM and GRU cells unrolled over a sequence (Dynamo leaves nn.LSTM itself to eager)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(12, 24)
        self.gru = nn.GRUCell(24, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_zeros(len(x), 24)
        cell = x.new_zeros(len(x), 24)
        state = x.new_zeros(len(x), 16)
        outputs = []
        for moment in x.unbind(1):
            hidden, cell = self.lstm(moment, (hidden, cell))
            state = self.gru(hidden, state)
            outputs.append(self.head(state))
        return torch.stack(outputs, 1)


class MixtureOfExperts(nn.Module):
    """A router that sends each token to two of four experts."""

    def __init__(self, width: int = 24, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 48) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 48, width) * 48**-0.5)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = self.router(x).softmax(-1)
        weights, chosen = chances.topk(2, dim=-1)
        gates = torch.zeros_like(chances).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("btd,edh->bteh", x, self.up))
        spread = torch.einsum("bteh,ehd->bted", hidden, self.down)
        return self.norm(x + (spread * gates.unsqueeze(-1)).sum(2)), chosen


class UNet(nn.Module):
    """A diffusion-like U-Net: group norm, SiLU, time embedding, attention in the middle, nearest upsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(2, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        angles = when[:, None] * torch.arange(1, 5, device=x.device, dtype=x.dtype)
        moment = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        skip = self.enter(x) + moment[:, :, None, None]
        deep = F.silu(self.norm(self.down(skip)))
        flat = deep.flatten(2).transpose(1, 2)
        deep = deep + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(deep)
        wide = F.interpolate(deep, scale_factor=2, mode="nearest")
        return self.leave(F.silu(self.up(torch.cat([wide, skip], 1))))


class Recommender(nn.Module):
    """Embedding bags, feature crosses and a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode=mode) for mode in ("sum", "mean"))
        self.dense = nn.Sequential(nn.Linear(7, 16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(16 + 3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        dense = self.dense(numbers)
        vectors = torch.stack([dense, *(bag(ids, offsets) for bag in self.bags)], 1)
        crossed = vectors @ vectors.transpose(1, 2)
        rows, columns = torch.triu_indices(3, 3, 1, device=numbers.device)
        return torch.sigmoid(self.head(torch.cat([dense, crossed[:, rows, columns]], 1)))


class Logits(nn.Module):
    """A transformers-library model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=101, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config)), (torch.randint(0, 101, (2, 12)),)


def bert() -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=101, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, hidden_act="gelu",
    )  # fmt: skip

    class Bert(Logits):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=tokens).logits

    return Bert(BertForMaskedLM(config)), (torch.randint(0, 101, (2, 12)),)


MODELS: dict[str, Callable[[], Made]] = {
    "transformer": lambda: (Transformer(), (torch.randint(0, 97, (2, 16)),)),
    "convnet": lambda: (ConvNet(), (torch.randn(4, 3, 12, 12),)),
    "recurrent": lambda: (Recurrent(), (torch.randn(3, 5, 12),)),
    "experts": lambda: (MixtureOfExperts(), (torch.randn(2, 10, 24),)),
    "unet": lambda: (UNet(), (torch.randn(2, 2, 8, 8), torch.rand(2))),
    "recommender": lambda: (
        Recommender(),
        (torch.randn(6, 7), torch.randint(0, 50, (20,)), torch.tensor([0, 3, 7, 10, 14, 17])),
    ),
    "llama": llama,
    "bert": bert,
}


def make(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Made:
    """Return a model and its inputs, in a dtype, the same every time."""
    torch.manual_seed(seed)
    model, inputs = MODELS[name]()

    def cast(value: Any) -> Any:
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    return model.to(device, dtype), tuple(cast(value) for value in inputs)
