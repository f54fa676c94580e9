"""Half precision: code that keeps float32 between two roundings is right, wherever it does so."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity import Status

F = torch.nn.functional
WHOLE = torch.tensor([-11.0, -6.0, -1.0, -7.0, -2.0])
# Results that are all rounding, or too small for float16, and what goes on with them.
MODELS = {
    "deviation": lambda x: torch.sinc(x).std(correction=0),
    "variance": lambda x: torch.sinc(x).var(correction=0).sqrt(),
    "norm": lambda x: torch.sinc(x).norm(),
    "layer norm": lambda x: F.layer_norm(torch.sinc(x), (5,)),
    "softmax": lambda x: (torch.sinc(x) * 1e7).softmax(0),
    "root of a square": lambda x: ((x * 1e-5) ** 2).sqrt(),
    "root of squares": lambda x: ((x * 1e-4) ** 2).sum().sqrt(),
    "inverse": lambda x: (x * 1e-4).square().mean().add(1e-9).rsqrt() * x,
    "cosine": lambda x: F.cosine_similarity(x * 1e-4, x.flip(0) * 1e-4, dim=0),
}


def judged(model, otherwise, dtype, x=WHOLE):
    """Judge another function as if it were what a compiler made of the model."""

    def backend(graph_module, inputs):
        return lambda *args: (otherwise(args[0]),)

    return torchparity.check(model, (x.to(dtype).requires_grad_(),), backend=backend)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_who_rounds_at_the_very_end_is_right(name, dtype):
    model = MODELS[name]
    verdict = judged(model, lambda x: model(x.float()).to(dtype), dtype)
    assert verdict.status is not Status.DIFFERS, torchparity.report.terminal.plain_text(verdict)


@pytest.mark.parametrize("factor", [1.0, 1.1])
@pytest.mark.parametrize("name", ["layer norm", "root of squares", "softmax", "cosine"])
def test_and_who_is_wrong_beside_that_is_found(name, factor):
    """Of ordinary numbers nothing is chance."""
    x = torch.linspace(-2, 1.5, 40).reshape(8, 5)
    models = {
        "layer norm": lambda x: F.layer_norm(x, (5,)),
        "root of squares": lambda x: (x**2).sum(0).sqrt(),
        "softmax": lambda x: x.softmax(0),
        "cosine": lambda x: F.cosine_similarity(x, x.flip(0) + 1, dim=0),
    }
    model = models[name]
    verdict = judged(model, lambda x: (model(x.float()) * factor).half(), torch.float16, x)
    assert verdict.status is (Status.SAME if factor == 1.0 else Status.DIFFERS), verdict.reasons


def test_the_derivative_of_a_deviation_that_float16_loses():
    """Eager's deviation is zero, and so is its derivative; inductor keeps 4e-8, and divides by it."""
    verdict = torchparity.check(MODELS["deviation"], (WHOLE.half().requires_grad_(),))
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)


@pytest.mark.parametrize("wrong", [0.0, 0.5])
def test_what_is_chance_at_one_place_excuses_nothing_elsewhere(wrong):
    x = torch.cat([WHOLE, torch.linspace(0.3, 1.7, 11)])

    def model(x):
        return torch.sinc(x[:5]).std(correction=0), x[5:].sin()

    def otherwise(x):
        deviation, rest = model(x.float())
        return deviation.half(), (rest + wrong).half()

    def backend(graph_module, inputs):
        return lambda *args: otherwise(args[0])

    verdict = torchparity.check(model, (x.half().requires_grad_(),), backend=backend)
    assert verdict.status is (Status.DIFFERS if wrong else Status.SAME), verdict.reasons


def test_where_most_right_runs_have_no_number_nothing_is_said():
    """The derivative of a deviation of subnormals: eager calls them all zero, one step more and it is infinite."""

    def model(x):
        values = torch.sinc(x)
        return values.expand(2, 5), values.std(correction=0).expand(4)

    def backend(graph_module, inputs):
        def run(x):
            values = torch.sinc(x)
            left = values.float() * torch.tensor([1.0, 1.0, 1.2, 1.0, 1.0])  # Its derivative is another one.
            return left.half().expand(2, 5), values.float().std(correction=0).half().expand(4)

        return run

    verdict = torchparity.check(model, (WHOLE.half().requires_grad_(),), backend=backend)
    assert verdict.status is Status.UNKNOWN, torchparity.report.terminal.plain_text(verdict)
    assert "Inf or NaN" in verdict.reasons[0]
