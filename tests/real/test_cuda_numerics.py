"""Numbers of a GPU: whatever torch is allowed to do with them, a right model is SAME, and a fault is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import torchparity
from torchparity import Status
from torchparity.faults import plant

DEVICE = "cuda"
pytestmark = [
    pytest.mark.cuda,
    # Owed to the machine: there is no GPU on most of them.
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
KERNELS = (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def agrees(model: Any, *inputs: torch.Tensor, **options: Any) -> torchparity.Verdict:
    verdict = torchparity.check(model, inputs, ignore=["stride"], **options)
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    return verdict


def finds_a_fault_in(operation: str, model: Any, *inputs: torch.Tensor, **options: Any) -> None:
    """See that the lost end of an operation is found; which of the places for it that is differs between releases."""
    counting = plant("tail", site=None)
    assert torchparity.check(model, inputs, backend=counting, **options).status is Status.SAME
    site = next(number for number, site in enumerate(counting.sites) if operation in site.operation)
    backend = plant("tail", site=site)
    verdict = torchparity.check(model, inputs, backend=backend, **options)
    assert operation in str(backend.planted)
    assert verdict.status is Status.DIFFERS, verdict.reasons


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_halves_may_be_reduced_or_not(dtype, allowed):
    """The inner dimension is long and the others short: that is where a library splits it, and adds halves up."""
    products = torch.backends.cuda.matmul
    before = products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction
    products.allow_fp16_reduced_precision_reduction = products.allow_bf16_reduced_precision_reduction = allowed
    try:
        verdict = agrees(lambda a, b: (a @ b).relu(), drawn(16, 8192, dtype=dtype), drawn(8192, 16, dtype=dtype))
        assert verdict.environment["bf16_reduced_sums"] is allowed
    finally:
        products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction = before


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name.lower())
def test_whatever_kernel_attention_takes(kernel):
    query, key, value = (drawn(2, 4, 64, 64, dtype=torch.float16) * scale for scale in (1.0, 0.5, 0.25))

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).relu()

    with sdpa_kernel(kernel):
        agrees(attend, query, key, value, train=True, fresh_cache=True)  # What is cached is another kernel's (#185449).


def test_flex_attention():
    query, key, value = (drawn(1, 2, 128, 32) * scale for scale in (1.0, 0.5, 0.25))

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return flex_attention(query, key, value, score_mod=lambda score, b, h, q, k: score + (q - k) * 0.01)

    agrees(attend, query, key, value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(DEVICE)
    agrees(model, drawn(16, 32), train=True, autocast=dtype, fresh_cache=True)  # 2.11 caches either for both (#181564).


def test_a_fault_under_autocast_is_found():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(DEVICE)
    finds_a_fault_in("addmm", model, drawn(16, 32), train=True, autocast=torch.bfloat16, ignore=["stride"])


def test_sums_by_atomics_have_a_spread_of_their_own():
    index = torch.arange(100_000, device=DEVICE) % 7

    def add(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(7, device=x.device).index_add(0, index, x).sin()

    agrees(add, drawn(100_000))


class Float8(torch.nn.Module):
    """A linear layer whose factors are float8, scaled to their range, as training in float8 does it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(drawn(32, 64, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (a, one), (b, other) = (scaled(factor) for factor in (x, self.weight))
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=other, out_dtype=torch.bfloat16).relu()


def scaled(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = value.abs().amax().float() / torch.finfo(torch.float8_e4m3fn).max
    return (value.float() / scale).to(torch.float8_e4m3fn), scale


def test_a_float8_linear_layer():
    agrees(Float8().requires_grad_(False), drawn(16, 64, dtype=torch.bfloat16))


def test_a_fault_in_a_float8_linear_layer_is_found():
    finds_a_fault_in("_scaled_mm", Float8().requires_grad_(False), drawn(16, 64, dtype=torch.bfloat16))
