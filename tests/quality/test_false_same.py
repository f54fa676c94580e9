"""Wrong results that the stock check calls the same: each must be DIFFERS here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchparity
from torchparity import Kind, Status
from torchparity.faults import plant


def first(function):
    """Change the first output of a graph."""
    return lambda outputs: [function(outputs[0]), *outputs[1:]]


def test_a_candidate_that_raises_is_no_candidate_that_agrees():
    verdict = torchparity.check(nn.Linear(4, 4), (torch.randn(2, 4),), backend=plant("raises"))
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.RAISES.value
    assert verdict.failure.stage == "run"


def test_a_compiler_that_raises_is_told_from_a_kernel_that_does():
    verdict = torchparity.check(nn.Linear(4, 4), (torch.randn(2, 4),), backend=plant("compile_raises"))
    assert verdict.status is Status.DIFFERS
    assert verdict.failure.stage == "compile"


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0])
def test_dropout_does_not_hide_a_wrong_scale(wrong_backend, factor):
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    backend = wrong_backend(first(lambda output: output * factor))
    verdict = torchparity.check(model, (torch.randn(8, 16),), backend=backend, train=True)
    assert verdict.status is Status.DIFFERS, verdict.reasons


def test_nan_in_both_does_not_hide_the_rest(wrong_backend):
    def model(x):
        return x.sqrt()

    def spoil(output):
        return torch.where(output.isnan(), output, output * 100)

    inputs = (torch.tensor([-1.0, 1.0, 4.0]),)
    assert torchparity.check(model, inputs, backend="aot_eager").status is Status.SAME
    verdict = torchparity.check(model, inputs, backend=wrong_backend(first(spoil)))
    assert verdict.status is Status.DIFFERS
    assert verdict.leaves[0].wrong_elements == 2


def test_tiny_gradients_replaced_by_zeros_are_seen():
    class Quiet(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return (x @ self.weight) * 1e-4

    verdict = torchparity.check(
        Quiet(), (torch.randn(4, 8),), backend=plant("zeroed", where="backward", site=1), backward=True
    )
    assert verdict.status is Status.DIFFERS
    assert verdict.leaves[0].path == "grad.weight"


def test_one_wrong_element_of_a_million_is_found(wrong_backend):
    def spoil(output):
        output = output.clone()
        output[123, 456] += 0.09
        return output

    inputs = (torch.randn(1000, 1000),)
    verdict = torchparity.check(torch.sin, inputs, backend=wrong_backend(first(spoil)))
    assert verdict.status is Status.DIFFERS
    assert verdict.leaves[0].where == (123, 456)
    assert verdict.leaves[0].wrong_elements == 1


def test_integers_are_exact(wrong_backend):
    def model(x):
        return x + 1

    inputs = (torch.tensor([7, 99_999]),)
    backend = wrong_backend(first(lambda output: output + torch.tensor([0, 50])))
    verdict = torchparity.check(model, inputs, backend=backend)
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.INTEGER.value
    assert verdict.leaves[0].mismatches[0].expected == "100000"
    assert verdict.leaves[0].mismatches[0].actual == "100050"


def test_strides_are_compared(wrong_backend):
    backend = wrong_backend(first(lambda output: output.t().contiguous().t()))
    verdict = torchparity.check(torch.sin, (torch.randn(3, 4),), backend=backend)
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.STRIDE.value


@pytest.mark.parametrize("last", [nn.Softmax(-1), nn.LayerNorm(8)], ids=["softmax", "layer norm"])
def test_backward_is_tested_where_a_mean_has_no_gradient(last):
    model = nn.Sequential(nn.Linear(8, 8), last)
    backend = plant("scale", where="backward", site=0)
    verdict = torchparity.check(model, (torch.randn(4, 8),), backend=backend, train=True)
    assert verdict.status is Status.DIFFERS, verdict.reasons


def test_outputs_may_be_a_dict():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return {"logits": self.linear(x), "mask": x > 0}

    inputs = (torch.randn(2, 4),)
    clean = torchparity.check(Named(), inputs, backend="aot_eager", train=True)
    assert clean.status is Status.SAME
    assert {leaf.path for leaf in clean.leaves} >= {"output.logits", "output.mask", "grad.linear.weight"}
    assert torchparity.check(Named(), inputs, backend=plant("scale"), train=True).status is Status.DIFFERS


def test_the_reference_is_float64_through_a_cast_to_bfloat16():
    def model(x):
        return x.to(torch.bfloat16).float() * 3

    inputs = (torch.rand(64) + 0.5,)
    verdict = torchparity.check(model, inputs, backend="eager")
    leaf = next(leaf for leaf in verdict.leaves if leaf.path == "output")
    # The rounding to bfloat16 is eager's error against the reference: about 2^-9 relative.
    assert leaf.has_reference
    assert 1e-4 < leaf.eager_rms_error < 2e-2


def test_a_systematic_percent_in_bfloat16_is_found():
    model = nn.Linear(256, 256, dtype=torch.bfloat16)
    inputs = (torch.randn(128, 256, dtype=torch.bfloat16),)
    assert torchparity.check(model, inputs, backend="aot_eager").status is Status.SAME
    verdict = torchparity.check(model, inputs, backend=plant("scale_percent"))
    assert verdict.status is Status.DIFFERS
    # No element shows it: the aggregate does.
    assert verdict.leaves[0].score < verdict.threshold < verdict.leaves[0].aggregate_score
    assert verdict.kind == Kind.BIAS.value


def test_nearer_to_float64_than_eager_is_no_failure():
    def model(x):
        for _ in range(30):
            x = x * 1.013 + 0.017
        return x

    def in_float32(graph_module, inputs):
        return lambda *args: tuple(value.to(torch.bfloat16) for value in graph_module(*(arg.float() for arg in args)))

    inputs = (torch.rand(512).to(torch.bfloat16),)
    verdict = torchparity.check(model, inputs, backend=in_float32)
    assert verdict.status is Status.SAME
    assert verdict.leaves[0].nearer_than_eager
    assert any("nearer to float64" in reason for reason in verdict.reasons)
