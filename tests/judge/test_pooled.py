"""All leaves together: faults that half precision hides in every leaf alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchparity import check
from torchparity.judge import pooled
from torchparity.records import Kind, Status


class Deep(nn.Module):
    """Products and normalisations, one behind the other."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for product, norm in zip(self.products, self.norms, strict=True):
            x = x + torch.tanh(product(norm(x)))
        return x


def model_and_input(dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Deep().to(dtype), (torch.randn(24, 32).to(dtype),)


def at_call(name: str, call: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return a backend that changes the result of one call of an operation."""

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        places = [node for node in graph.graph.nodes if name in str(node.target)]

        class Changing(torch.fx.Interpreter):
            def run_node(self, node: torch.fx.Node) -> Any:
                result = super().run_node(node)
                return change(result) if node is places[call] else result

        return lambda *args: Changing(graph).run(*args)

    return backend


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1.03), (torch.float16, 1.004)])
def test_a_small_scale_of_one_operation_is_seen_in_all_leaves_together(dtype: torch.dtype, size: float) -> None:
    model, inputs = model_and_input(dtype)

    verdict = check(model, inputs, backend=at_call("tanh", 0, lambda result: result * size))

    assert verdict.status is Status.DIFFERS
    assert verdict.leaves[0].mismatches[0].kind is Kind.BIAS
    assert any("together they lie" in reason and "tanh" in reason for reason in verdict.reasons)


class ScaledBackward(torch.autograd.Function):
    """The same number forward, a little too much backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.007


def test_what_is_wrong_in_the_backward_pass_only_is_seen_there() -> None:
    model, inputs = model_and_input(torch.bfloat16)

    verdict = check(model, inputs, backend=at_call("tanh", 0, ScaledBackward.apply), train=True)

    assert verdict.status is Status.DIFFERS
    assert any("the gradient of" in reason for reason in verdict.reasons), verdict.reasons


def test_alone_no_leaf_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled.Pooled, "applies", lambda self, reports: False)
    model, inputs = model_and_input(torch.bfloat16)

    verdict = check(model, inputs, backend=at_call("tanh", 0, lambda result: result * 1.03))

    assert verdict.status is Status.SAME


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_other_roundings_are_no_direction(dtype: torch.dtype, train: bool, seed: int) -> None:
    """A compiler that computes in float32 and rounds once, or that rounds more often than eager does."""
    model, inputs = model_and_input(dtype)
    noise = torch.Generator().manual_seed(seed)

    def once_more(result: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(result.shape, generator=noise) - 0.5
        return result + (result.float() * torch.finfo(dtype).eps * drawn).to(dtype)

    verdict = check(model, inputs, backend=at_call("tanh", 0, once_more), train=train)

    assert verdict.status is Status.SAME, verdict.reasons


def test_what_has_no_second_derivative_is_left_out() -> None:
    """The gradient of an embedding bag cannot be differentiated; the others can."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.deep = nn.EmbeddingBag(20, 32, mode="sum"), Deep()

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.deep(self.bag(words))

    torch.manual_seed(0)
    model = Bag().to(torch.bfloat16)
    words = torch.randint(0, 20, (24, 5))

    clean = check(model, (words,), backend="aot_eager", train=True)
    verdict = check(model, (words,), backend=at_call("tanh", 0, lambda result: result * 1.03), train=True)

    assert clean.status is Status.SAME
    assert not any("not together" in reason for reason in verdict.reasons)
    assert verdict.status is Status.DIFFERS


def test_a_model_without_derivatives_is_judged_leaf_by_leaf() -> None:
    model, inputs = model_and_input(torch.bfloat16)
    for parameter in model.parameters():
        parameter.requires_grad_(False)

    def nearly(result: torch.Tensor) -> torch.Tensor:
        return result * 1.004

    assert check(model, inputs, backend=at_call("tanh", 0, nearly)).status is Status.SAME
