"""Gradients that are whole at once are handed on while the backward pass goes on: on a device, memory is dear."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torchparity
from torchparity import Status
from torchparity.compare.leaves import Leaf
from torchparity.faults import plant
from torchparity.run import step
from torchparity.run.plan import Plan
from torchparity.run.step import Runner
from torchparity.run.subject import Subject


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).tanh())


class Reentrant(Tied):
    """Adds to the gradient of its tied weight twice, once for each segment."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=True)
        return checkpoint(lambda y: self.second(self.norm(y).tanh()), x, use_reentrant=True)


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(step, "HANDED_ON_EARLY", ("cpu",))


def leaves_of(runner: Runner, model: torch.nn.Module) -> list[tuple[Leaf, bool]]:
    """Run, and tell of every leaf whether it came while other gradients were still to come."""
    found: list[tuple[Leaf, bool]] = []

    def consume(leaf: Leaf) -> None:
        waiting = any(parameter.grad is None for parameter in model.parameters()) and leaf.role == "gradient"
        found.append((leaf, waiting))

    ending = runner.run(model, consume, early=True)
    assert ending.failure is None, ending.failure
    return found


@pytest.mark.parametrize(("kind", "comes"), [(Tied, True), (Reentrant, False)])
def test_every_gradient_comes_once_and_as_it_is(kind, comes):
    torch.manual_seed(0)
    model = kind()
    inputs = torch.randn(3, 6, requires_grad=True)
    runner = Runner(Subject(model, (inputs,)), Plan(backward=True))
    first = {leaf.path: leaf.value for leaf, _ in leaves_of(runner, model)}
    second = leaves_of(runner, model)

    paths = [leaf.path for leaf, _ in second]
    assert len(paths) == len(set(paths))
    assert set(paths) == set(first)
    for leaf, _ in second:
        if leaf.role == "gradient":
            assert torch.equal(leaf.value, first[leaf.path])
    assert (runner.additions["grad.first.weight"] == 1) is comes
    order = [leaf.role for leaf, _ in second]
    assert order.index("gradient") < len(order) - 1
    assert paths.index("grad.second.bias") < paths.index("grad.first.bias")  # Backwards, and not as they stand.


def test_clean_is_same_and_a_wrong_gradient_is_found():
    torch.manual_seed(0)
    inputs = (torch.randn(3, 6),)

    assert torchparity.check(Tied(), inputs, backend="aot_eager", train=True).status is Status.SAME
    wrong = plant("scale", where="backward", site=2)
    assert torchparity.check(Tied(), inputs, backend=wrong, train=True).status is Status.DIFFERS


def test_what_goes_wrong_while_a_gradient_is_taken_is_said_as_it_is(monkeypatch):
    model = Tied()
    runner = Runner(Subject(model, (torch.randn(3, 6),)), Plan(backward=True))
    leaves_of(runner, model)

    def consume(leaf: Leaf) -> None:
        if leaf.role == "gradient":
            raise LookupError("ours")

    ending = runner.run(model, consume, early=True)
    assert ending.failure is not None
    assert ending.failure.type == "LookupError"
