"""Models that are awkward to judge: each is SAME when compiled rightly, and DIFFERS with a fault planted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchparity
from torchparity import Kind, Status, Subject
from torchparity.faults import plant


def judged(model, inputs, backend, **options):
    return torchparity.check(model, inputs, backend=backend, **options)


def assert_judged_rightly(model, inputs, fault, **options):
    clean = judged(model, inputs, "aot_eager", **options)
    assert clean.status is Status.SAME, clean.reasons
    wrong = judged(model, inputs, fault, **options)
    assert fault.planted is not None, "the fault found no place"
    assert wrong.status is Status.DIFFERS, wrong.reasons
    return wrong


def test_dropout():
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 4))
    assert_judged_rightly(model, (torch.randn(8, 16),), plant("scale_tiny", site=1), train=True)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_tied_weights():
    model = Tied()
    inputs = (torch.arange(12).view(3, 4),)
    options = {"train": True, "steps": 2, "optimizer": "adamw"}
    assert_judged_rightly(model, inputs, plant("scale", where="backward"), **options)
    assert model.head.weight is model.embedding.weight
    paths = {leaf.path for leaf in judged(model, inputs, "eager", **options).leaves}
    assert "call[1].parameter.embedding.weight" in paths
    assert "call[1].optimizer.embedding.weight.exp_avg" in paths


def test_input_written_in_place():
    def model(x, scale):
        x.mul_(scale)
        return x.sum()

    inputs = (torch.randn(5), torch.tensor(1.5))
    wrong = assert_judged_rightly(model, inputs, plant("lost_mutation"))
    assert wrong.kind == Kind.MUTATION.value
    assert wrong.leaves[0].path == "input.args[0]"


def test_output_that_aliases_the_input(wrong_backend):
    def model(x):
        return x.view(2, 3), x + 1

    inputs = (torch.randn(6),)
    clean = judged(model, inputs, "aot_eager")
    assert clean.status is Status.SAME
    wrong = judged(model, inputs, wrong_backend(lambda outputs: [value.clone() for value in outputs]))
    assert wrong.status is Status.DIFFERS
    assert wrong.kind == Kind.ALIAS.value


def test_complex_integer_and_bool_outputs():
    def model(x):
        return torch.fft.fft(x), x.argmax(), x > 0, x.long()

    inputs = (torch.randn(32) * 10,)
    assert judged(model, inputs, "aot_eager").status is Status.SAME
    for index, change in enumerate(
        (lambda value: value * (1 + 1e-4j), lambda value: value + 1, lambda value: ~value, lambda value: value + 1)
    ):
        backend = spoiling(index, change)
        verdict = judged(model, inputs, backend)
        assert verdict.status is Status.DIFFERS
        assert verdict.leaves[0].path == f"output[{index}]"


def spoiling(index, change):
    def backend(graph_module, inputs):
        def run(*args):
            outputs = list(graph_module(*args))
            outputs[index] = change(outputs[index])
            return tuple(outputs)

        return run

    return backend


def test_sparse_output():
    def model(x):
        return (x * 2).to_sparse()

    inputs = (torch.eye(4) * torch.rand(4),)
    assert judged(model, inputs, "aot_eager").status is Status.SAME
    assert judged(model, inputs, plant("scale")).status is Status.DIFFERS


def test_nan_in_a_correct_result():
    def model(x):
        return torch.log(x) * 2

    inputs = (torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0]),)
    assert judged(model, inputs, "aot_eager").status is Status.SAME
    wrong = judged(model, inputs, plant("wrong_element", site=1))
    assert wrong.status is Status.DIFFERS
    assert judged(model, inputs, plant("nan", site=1)).status is Status.SAME  # there is a NaN there already
    assert judged(model, inputs, plant("inf", site=1)).kind == Kind.NONFINITE.value


def test_graph_break():
    def model(x):
        x = torch.sin(x)
        if float(x.sum()) > 0:
            return x * 2
        return x / 3

    inputs = (torch.rand(16),)
    assert judged(model, inputs, "aot_eager").status is Status.SAME
    behind = plant("scale", site=2)
    assert judged(model, inputs, behind).status is Status.DIFFERS
    assert behind.planted.graph == 1


def test_second_call_recompiles():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    sets = [(torch.randn(2, 8),), (torch.randn(5, 8),), (torch.randn(9, 8),)]
    subject = Subject(model, input_sets=sets)
    assert torchparity.check(subject, backend="aot_eager", train=True).status is Status.SAME
    calls = iter(range(100))

    def wrong_when_recompiled(graph_module, inputs):
        if next(calls) == 0:
            return graph_module
        return lambda *args: tuple(value * 1.001 for value in graph_module(*args))

    verdict = torchparity.check(subject, backend=wrong_when_recompiled, train=True)
    assert verdict.status is Status.DIFFERS
    differing = [leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
    assert not any(path.startswith("call[0].output") for path in differing)
    assert any(path.startswith("call[1].output") for path in differing)


class Router(nn.Module):
    """Two experts, and a token exactly between them but for one rounding."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return outputs[torch.arange(len(x)), chosen]


def test_a_tie_that_rounding_decides_is_no_error(wrong_backend):
    model = Router()
    x = torch.randn(64, 8)
    with torch.no_grad():
        weight = model.gate.weight
        across = weight[0] - weight[1]
        x[3] -= (x[3] @ across) / (across @ across) * across  # on the edge between the experts
    chosen = model.gate(x).argmax(-1)

    def other_side(graph_module, inputs):
        def run(*args):
            (output,) = graph_module(*args)
            flipped = output.clone()
            flipped[3] = model.experts[1 - int(chosen[3])](x[3])
            return (flipped,)

        return run

    verdict = judged(model, (x,), other_side)
    assert verdict.status is Status.SAME, verdict.reasons

    def wrong_side(graph_module, inputs):
        def run(*args):
            (output,) = graph_module(*args)
            flipped = output.clone()
            flipped[4] = model.experts[1 - int(chosen[4])](x[4])
            return (flipped,)

        return run

    assert judged(model, (x,), wrong_side).status is Status.DIFFERS


def test_plain_function_with_a_module_in_its_closure():
    linear = nn.Linear(4, 4)

    def model(x):
        return F.gelu(linear(x))

    verdict = judged(model, (torch.randn(2, 4),), "aot_eager", train=True)
    assert verdict.status is Status.SAME
    assert "grad.linear.weight" in {leaf.path for leaf in verdict.leaves}
    fault = plant("wrong_gelu", where="backward")
    assert judged(model, (torch.randn(2, 4),), fault, train=True).status is Status.DIFFERS


@pytest.mark.parametrize("optimizer", ["sgd", "AdamW", "rmsprop"])
def test_optimizer_steps(optimizer):
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    inputs = (torch.randn(3, 6),)
    clean = judged(model, inputs, "aot_eager", train=True, steps=3, optimizer=optimizer)
    assert clean.status is Status.SAME, clean.reasons
    assert "call[2].parameter.0.weight" in {leaf.path for leaf in clean.leaves}


def test_autocast():
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8))
    inputs = (torch.randn(16, 32),)
    clean = judged(model, inputs, "aot_eager", train=True, autocast=torch.bfloat16)
    assert clean.status is Status.SAME
    output = next(leaf for leaf in clean.leaves if leaf.path == "output")
    assert output.dtype == "bfloat16"
    assert output.eager_rms_error > 1e-4  # the reference is not rounded to bfloat16
    wrong = judged(model, inputs, plant("negated"), train=True, autocast="bfloat16")
    assert wrong.status is Status.DIFFERS
