"""Errors that something else in the result could hide: each must be found."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import torchparity
from torchparity import Kind, Status


def changing(change):
    """A backend that changes the first output of its graph."""

    def backend(graph_module, inputs):
        return lambda *args: (change((outputs := graph_module(*args))[0]), *outputs[1:])

    return backend


DIAGONAL = torch.eye(32, dtype=torch.bool)


@pytest.mark.parametrize("factor", [0.0, 1.1, 1.0001])
def test_a_mask_does_not_hide_the_rest(factor):
    def model(x, w):
        return (x @ w).masked_fill(DIAGONAL, -1e9)

    inputs = (torch.randn(32, 16), torch.randn(16, 32))
    assert torchparity.check(model, inputs, backend="aot_eager").status is Status.SAME
    wrong = changing(lambda output: torch.where(DIAGONAL, output, output * factor))
    assert torchparity.check(model, inputs, backend=wrong).status is Status.DIFFERS


def test_one_loud_row_does_not_hide_the_quiet_ones():
    def model(x, w):
        return torch.cat([x[:1] @ w * 1e6, x[1:] @ w])

    inputs = (torch.randn(64, 64), torch.randn(64, 64))
    assert torchparity.check(model, inputs, backend="aot_eager").status is Status.SAME

    def spoil(output):
        output = output.clone()
        output[5] *= 1.001
        return output

    assert torchparity.check(model, inputs, backend=changing(spoil)).status is Status.DIFFERS


@pytest.mark.parametrize("value", [0.0, 1000.0, 65504.0])
def test_a_finite_value_where_eager_overflows_must_be_right(value):
    def model(x):
        return x * 300

    inputs = ((torch.randn(64) * 300).half(),)
    wrong = changing(lambda output: torch.where(output.isinf(), torch.tensor(value).half(), output))
    assert torchparity.check(model, inputs, backend=wrong).status is Status.DIFFERS


@pytest.mark.parametrize("options", [{"reference": False}, {"double": True}, {}], ids=["noref", "float64", "float32"])
def test_a_model_that_counts_its_calls_is_not_deterministic(options):
    counter = itertools.count(1)
    linear = nn.Linear(4, 4, dtype=torch.float64 if options.pop("double", False) else torch.float32)

    @torch.compiler.disable
    def count():
        return next(counter)

    def model(x):
        return linear(x) * count()

    x = torch.randn(2, 4, dtype=linear.weight.dtype)
    verdict = torchparity.check(model, (x,), backend="eager", **options)
    assert verdict.status is Status.UNKNOWN
    assert "not deterministic" in verdict.reasons[0]


def test_overflow_and_nan_are_deterministic():
    def model(x):
        return (x * 300).sin() * 0 + x * 300

    verdict = torchparity.check(model, ((torch.randn(64) * 300).half(),), backend="aot_eager")
    assert verdict.status is Status.SAME, verdict.reasons


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.tensor = torch.zeros(3)
        self.number = 0
        self.cache = {}

    def forward(self, x, given=None):
        wrong = torch.compiler.is_compiling()
        if self.fault != "tensor" or not wrong:
            self.tensor.add_(1)
        self.number += 2 if wrong and self.fault == "number" else 1
        self.cache["key"] = x * (2 if wrong and self.fault == "cache" else 3)
        if given is not None:
            given.append(x * (2 if wrong and self.fault == "argument" else 3))
        return x + 1


@pytest.mark.parametrize("fault", ["none", "tensor", "number", "cache", "argument"])
def test_what_a_run_leaves_in_attributes_and_containers_is_compared(fault):
    model = Remembering()
    model.fault = fault
    given = []
    verdict = torchparity.check(model, (torch.randn(3), given), backend="eager")
    assert verdict.status is (Status.SAME if fault == "none" else Status.DIFFERS), verdict.reasons
    assert (model.number, model.cache, given) == (0, {}, [])


STRUCTURES = {
    "list for tuple": (lambda x: (x + 1,), lambda x: [x + 1]),
    "empty dict for None": (lambda x: (x + 1, None), lambda x: (x + 1, {})),
    "one None too many": (lambda x: (x + 1,), lambda x: (x + 1, None)),
    "other order of keys": (lambda x: {"a": x + 1, "b": x}, lambda x: {"b": x, "a": x + 1}),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_structure_is_exact(case):
    right, wrong = STRUCTURES[case]

    def model(x):
        return wrong(x) if torch.compiler.is_compiling() else right(x)

    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.STRUCTURE.value


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_outputs_that_alias_each_other(backend):
    def model(x):
        y = x + 1
        return y, y.view(-1), y[1:]

    assert torchparity.check(model, (torch.randn(3, 2),), backend=backend).status is Status.SAME

    def apart(graph_module, inputs):
        return lambda *args: tuple(value.clone() for value in graph_module(*args))

    verdict = torchparity.check(model, (torch.randn(3, 2),), backend=apart)
    assert verdict.kind == Kind.ALIAS.value


def test_another_place_of_the_same_input_is_another_alias():
    def model(x):
        return x[1:2] if torch.compiler.is_compiling() else x[0:1]

    verdict = torchparity.check(model, (torch.ones(3),), backend="eager")
    assert verdict.kind == Kind.ALIAS.value


def test_an_integer_that_noise_moves_a_little_may_not_be_anything():
    linear = nn.Linear(8, 64)

    def model(x):
        return (linear(x) * 1e6).round().long()

    def spoil(output):
        output = output.clone()
        output[0, 5] += 5000
        return output

    inputs = (torch.randn(4, 8),)
    assert torchparity.check(model, inputs, backend="aot_eager").status is Status.SAME
    assert torchparity.check(model, inputs, backend=changing(spoil)).status is Status.DIFFERS


def test_what_a_function_writes_to_its_globals_is_put_back():
    calls = [0]

    def model(x):
        calls[0] += 1
        return x * calls[0]

    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")
    assert verdict.status is Status.SAME, verdict.reasons
    assert calls == [0]
