"""How many operations a graph has: call by call, which is fast, and as a whole, which is slow, they are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchparity import torchapi
from torchparity.judge.ground import Ground
from torchparity.judge.settings import Settings
from torchparity.run.plan import Plan
from torchparity.run.reference import Reference
from torchparity.run.subject import Subject


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.out = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.wide(self.norm(x)).chunk(3, -1)
        mixed = torch.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + torch.nn.functional.dropout(self.out(mixed), 0.1)


def with_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.transpose(-1, -2)


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
    return x * y


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y += 1
    y[0] = 2
    return y.relu_()


X = (torch.randn(2, 4, 8, requires_grad=True),)
CALLED: list[tuple[Any, tuple[Any, ...]]] = [
    (torch.nn.Sequential(Block(), Block(), Block()), X),
    (
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.ReLU()),
        (torch.randn(2, 3, 8, 8),),
    ),
    (torch.nn.Embedding(9, 4), (torch.tensor([1, 2]),)),
    (lambda x: torch.stack(x.unbind(0)).sum((1, 2)).softmax(0), X),
    (lambda x: torch.where(~(x > 0), x, x.std()), X),
]
WHOLE: list[tuple[Any, tuple[Any, ...]]] = [(with_autocast, X), (without_gradients, X), (in_place, X)]


def graphs(model: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> list[tuple[int | None, int, int]]:
    """Return, for each graph of a model, what both ways count, and what is told."""
    found = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(
            (
                torchapi.counted_by_call(graph),
                torchapi.counted_whole(graph, inputs),
                torchapi.operations_of(graph, inputs),
            )
        )
        return graph

    torch.compiler.reset()
    torch.compile(model, backend=backend, **options)(*args)
    return found


@pytest.mark.parametrize(("model", "args"), CALLED, ids=["blocks", "convolution", "embedding", "views", "where"])
def test_each_kind_of_call_is_counted_once_and_the_sum_is_the_same(model, args):
    ((by_call, whole, told),) = graphs(model, args)
    assert by_call == whole == told > 0


@pytest.mark.parametrize(("model", "args"), WHOLE, ids=["autocast", "no_grad", "in place"])
def test_what_changes_something_is_counted_as_a_whole(model, args):
    ((by_call, whole, told),) = graphs(model, args)
    assert by_call is None
    assert whole == told > 0


def test_sizes_that_are_symbols_are_not_asked():
    ((by_call, whole, told),) = graphs(lambda x: x.sin() + x.sum(), (torch.randn(5, 6),), dynamic=True)
    assert by_call is None
    assert whole == told == 3


def test_plain_kernels_of_a_reference_are_not_the_models_operations():
    ground = Ground(Subject(torch.sin, (torch.ones(2),)), Plan(), Settings())
    ground.reference, ground.noise_operations = Reference(plain=True), 3
    ground.reference.operations = 20
    assert ground.operations == 3
    ground.noise_operations = 0  # There was no noise run.
    assert ground.operations == 20
    ground.reference, ground.noise_operations = Reference(), 3
    ground.reference.operations = 4
    assert ground.operations == 4
