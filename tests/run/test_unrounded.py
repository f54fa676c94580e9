"""Numbers of Python's that eager rounds before it decides by them: who does not round them is right too."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity import Status
from torchparity.run.operators import traits_of
from torchparity.run.unrounded import as_written

NUMBERS = torch.arange(1, 200, dtype=torch.float32)
WAYS = {
    "remainder": (lambda x: x % 0.3, lambda x: x.float() % 0.3),
    "of a negative": (lambda x: x % -0.3, lambda x: x.float() % -0.3),
    "fmod": (lambda x: torch.fmod(x, 0.3), lambda x: torch.fmod(x.float(), 0.3)),
    "in place": (lambda x: x.clone().remainder_(0.7), lambda x: x.float() % 0.7),
    "of a whole number": (lambda x: (x * 64) % 301, lambda x: (x * 64).float() % 301),
    "and then on": (lambda x: (x % 0.3).sin() * x, lambda x: (x.float() % 0.3).sin() * x.float()),
    "on average": (lambda x: (x % 0.3).mean(), lambda x: (x.float() % 0.3).mean()),
}


def judged(model, otherwise, x):
    """Judge what computes the same in another way as if it were compiled."""

    def backend(graph_module, example_inputs):
        return lambda *args: (otherwise(x),)

    return torchparity.check(model, (x,), backend=backend)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WAYS)
def test_a_number_need_not_be_rounded(name, dtype):
    model, otherwise = WAYS[name]
    x = NUMBERS.to(dtype)
    verdict = judged(model, lambda x: otherwise(x).to(dtype), x)
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WAYS)
def test_it_may_be(name, dtype):
    model, _ = WAYS[name]
    x = NUMBERS.to(dtype)
    assert judged(model, model, x).status is Status.SAME


@pytest.mark.parametrize("wrong", [lambda x: x % 0.33, lambda x: x % 0.3 + 0.3, lambda x: x * 0 + 0.1])
def test_what_is_wrong_by_more_is_found(wrong):
    x = NUMBERS[:64].to(torch.bfloat16) / 128
    verdict = judged(lambda x: x % 0.3, lambda x: wrong(x.float()).to(x.dtype), x)
    assert verdict.status is Status.DIFFERS, torchparity.report.terminal.plain_text(verdict)


@pytest.mark.parametrize("number", [0.5, 3, -2.0])
def test_a_number_that_the_format_holds_is_left_alone(number):
    operator = torch.ops.aten.remainder.Scalar
    x = NUMBERS.to(torch.bfloat16)
    assert as_written(operator, traits_of(operator), (x, number), {}, 0) == []
    verdict = judged(lambda x: x % number, lambda x: x % number + 0.25, x)
    assert verdict.status is Status.DIFFERS


def test_a_longer_format_rounds_no_number_twice():
    operator = torch.ops.aten.remainder.Scalar
    assert as_written(operator, traits_of(operator), (NUMBERS, 0.3), {}, 0) == []
    assert len(as_written(operator, traits_of(operator), (NUMBERS.half(), 0.3), {}, 1)) == 1
