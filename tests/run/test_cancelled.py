"""Float64 sums that cancel: whatever order they are added up in is right, and a fault beside them is found."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity import Status

NUMBERS = torch.arange(33, dtype=torch.float64) * 7 % 9 - 4
TENTHS = (torch.arange(12, dtype=torch.float64) - 5.5) * 0.1


def judged(model, otherwise, *inputs):
    """Judge what computes the same in another order as if it were compiled."""

    def backend(graph_module, example_inputs):
        return lambda *args: (otherwise(*inputs),)

    return torchparity.check(model, inputs, backend=backend)


def chained(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


CASES = {
    "std_mean": (lambda x: torch.std_mean(x, 0)[1], lambda x: x.sum() / x.numel(), NUMBERS - NUMBERS.sum() / 33),
    "sum": (lambda x: x.sum(), lambda x: chained(x.flip(0)), TENTHS),
    "mean": (lambda x: x.mean(), lambda x: chained(x * (1 / len(x))), TENTHS),
    "cumsum": (lambda x: x.cumsum(0), lambda x: x.flip(0).cumsum(0).flip(0) * -1 + x + x.sum(), TENTHS),
    "dot": (lambda x: x.dot(x.sign() * x.flip(0).sign() * -x.flip(0)), None, TENTHS),
    "addr": (
        lambda x: torch.addr(x[None] * x[:, None], x, x, beta=0.6, alpha=-0.6),
        lambda x: x[None] * x[:, None] * 0.6 - (x * 0.6)[:, None] * x,
        TENTHS,
    ),
    "addcmul": (
        lambda x: torch.addcmul(x * 0.3, x, x / x, value=-0.3),
        lambda x: x * 0.3 - x * (x / x * 0.3 + 1e-17),
        TENTHS,
    ),
    "add": (lambda x: torch.add(x * 0.3, x, alpha=-0.3), lambda x: x * 0.3 - x * 0.1 - x * 0.2, TENTHS),
}


@pytest.mark.parametrize("name", CASES)
def test_terms_that_cancel_have_the_error_of_their_size(name):
    model, otherwise, x = CASES[name]
    if otherwise is None:
        otherwise = lambda x: chained(x * (x.sign() * x.flip(0).sign() * -x.flip(0)))  # noqa: E731
    verdict = judged(model, otherwise, x)
    assert verdict.status is Status.SAME, verdict.reasons


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_by_more_than_that_is_found(name):
    model, _, x = CASES[name]
    verdict = judged(model, lambda x: model(x) + 1e-13, x)
    assert verdict.status is Status.DIFFERS


@pytest.mark.parametrize("wrong", [0.0, 1e-15])
def test_what_adds_up_without_an_error_is_exact(wrong):
    """Whole numbers that cancel leave a zero, in any order."""
    x = torch.arange(9, dtype=torch.float64) - 4
    verdict = judged(lambda x: x.sum(), lambda x: x.sum() + wrong, x)
    assert verdict.status is (Status.DIFFERS if wrong else Status.SAME)
