"""The oracle's answers where the model, the candidate or the randomness is difficult."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import torchparity
from torchparity import AccuracyError, Kind, ResourceError, Status, UsageError
from torchparity.compare.expectation import Expectation
from torchparity.faults import plant


def test_a_verdict_has_no_truth_value():
    verdict = torchparity.check(torch.sin, (torch.randn(3),), backend="eager")
    with pytest.raises(TypeError, match="no truth value"):
        bool(verdict)
    with pytest.raises(TypeError, match="no truth value"):
        bool(verdict.status)


def test_both_raise_is_unknown():
    def model(x):
        return x.reshape(7)

    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")
    assert verdict.status is Status.UNKNOWN
    assert "the model itself raises" in verdict.reasons[0]


def test_only_the_candidate_returns_is_accepts_invalid():
    def model(x):
        if not torch.compiler.is_compiling():
            raise ValueError("not here")
        return x + 1

    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.ACCEPTS_INVALID.value


def test_a_model_that_is_not_deterministic_is_unknown_there_and_judged_elsewhere():
    generator = np.random.default_rng()

    def model(x):
        return x + float(generator.normal()), x * 2

    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")
    assert verdict.status is Status.UNKNOWN
    assert "the model itself is not deterministic at output[0]" in verdict.reasons[0]
    statuses = {leaf.path: leaf.status for leaf in verdict.leaves}
    assert statuses["output[0]"] is Status.UNKNOWN
    assert statuses["output[1]"] is Status.SAME


def test_not_deterministic_does_not_hide_an_error_elsewhere():
    generator = np.random.default_rng()

    def model(x):
        return x + float(generator.normal()), x * 2

    def backend(graph_module, inputs):
        return lambda *args: tuple(value * 1.01 for value in graph_module(*args))

    verdict = torchparity.check(model, (torch.randn(3),), backend=backend)
    assert verdict.status is Status.DIFFERS


def own_random_numbers(graph_module, inputs):
    """A backend that draws other random numbers than eager does."""

    def run(*args):
        torch.rand(1)
        return graph_module(*args)

    return run


def test_other_random_numbers_are_unknown():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    verdict = torchparity.check(model, (torch.randn(4, 8),), backend=own_random_numbers, train=True)
    assert verdict.status is Status.UNKNOWN
    assert any("does not draw eager's random numbers" in reason for reason in verdict.reasons)


def test_other_random_numbers_do_not_excuse_a_leaf_they_do_not_reach():
    def model(x):
        return torch.dropout(x, 0.5, True), x * 2

    def backend(graph_module, inputs):
        run = own_random_numbers(graph_module, inputs)

        def wrong(*args):
            dropped, doubled = run(*args)
            return dropped, doubled * 1.001

        return wrong

    verdict = torchparity.check(model, (torch.randn(64),), backend=backend)
    assert verdict.status is Status.DIFFERS
    assert verdict.leaves[0].path == "output[1]"
    assert {leaf.path: leaf.status for leaf in verdict.leaves}["output[0]"] is Status.UNKNOWN


def test_the_same_bits_are_judged_once(monkeypatch):
    judged = []

    def judge(expectation, leaf, *args, **kwargs):
        judged.append(leaf.path)
        return plain(expectation, leaf, *args, **kwargs)

    plain = Expectation.judge
    monkeypatch.setattr(Expectation, "judge", judge)
    verdict = torchparity.check(nn.Linear(4, 4), (torch.randn(2, 4),), backend="aot_eager", train=True)
    assert verdict.status is Status.SAME
    assert sum(run.name.startswith("aot_eager") for run in verdict.runs) == 2
    assert judged.count("output") == judged.count("grad.weight") == 1


class Counting(nn.Module):
    """A weight, a buffer that counts what went through, an output: one leaf of each kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.ones(8))

    def forward(self, x):
        self.count.add_(x.detach().mean(0))
        return x * self.weight


@pytest.mark.parametrize("wrong", ["output", "grad.weight", "buffer.count"])
def test_a_leaf_that_goes_wrong_in_the_second_run_only_is_seen(wrong):
    calls = itertools.count(1)

    def backend(graph_module, inputs):
        def run(*args):
            outputs = list(graph_module(*args))
            off = torch.zeros(8)
            off[0] = 0.01 * (next(calls) % 2 == 0)
            held = {value.requires_grad: value for value in args if value.shape == (8,)}
            if wrong == "output":
                outputs[0] = outputs[0] + off
            elif wrong == "grad.weight":  # Nothing is added; the gradient does not know that.
                outputs[0] = outputs[0] + (held[True] - held[True].detach()) * off
            else:
                held[False].add_(off)
            return outputs

        return run

    verdict = torchparity.check(Counting(), (torch.randn(4, 8),), backend=backend, train=True)
    assert verdict.status is Status.DIFFERS
    assert {leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS} == {wrong}
    assert verdict.differs_in[0] < verdict.differs_in[1]


def test_flaky_candidates_are_reported_as_k_of_n():
    verdict = torchparity.check(nn.Linear(8, 8), (torch.randn(4, 8),), backend=plant("nondeterministic"))
    assert verdict.status is Status.DIFFERS
    times, runs = verdict.differs_in
    assert 0 < times < runs == 5
    assert any(f"differs in {times} of {runs} runs" in reason for reason in verdict.reasons)


def test_the_model_is_left_as_it_was_found():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[0].weight.grad = torch.ones(4, 4)
    model.eval()
    model[2].train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 4)
    x_before, random_before = x.clone(), torch.get_rng_state()
    torchparity.check(model, (x,), backend="aot_eager", train=True, steps=2, optimizer="adam")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert model[1].weight.grad is None
    assert [module.training for module in model] == [False, False, True]
    assert torch.equal(x, x_before)
    assert torch.equal(torch.get_rng_state(), random_before)


def test_python_state_of_modules_is_restored_before_every_run():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.seen = []

        def forward(self, x):
            self.calls += 1
            self.seen.append(self.calls)
            return x * self.calls

    model = Counting()
    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")
    assert verdict.status is Status.SAME, verdict.reasons
    assert (model.calls, model.seen) == (0, [])


def test_without_a_reference_the_noise_of_eager_decides():
    model = nn.Linear(16, 16)
    inputs = (torch.randn(4, 16),)
    clean = torchparity.check(model, inputs, backend="aot_eager", reference=False)
    assert clean.status is Status.SAME
    assert any("without a float64 reference" in reason for reason in clean.reasons)
    assert not any(leaf.has_reference for leaf in clean.leaves)
    assert torchparity.check(model, inputs, backend=plant("scale"), reference=False).status is Status.DIFFERS


def test_an_operation_without_a_float64_kernel_is_named():
    @torch.library.custom_op("torchparity_tests::only_float32", mutates_args=())
    def only_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("only float32")
        return x * 2

    only_float32.register_fake(lambda x: torch.empty_like(x))
    verdict = torchparity.check(lambda x: only_float32(x).sin(), (torch.randn(8),), backend="aot_eager")
    assert verdict.status is Status.SAME
    assert any("no float64 kernel for only_float32" in reason for reason in verdict.reasons)


def test_nothing_compiled_is_said():
    @torch.compiler.disable
    def hidden(x):
        return x + 1

    verdict = torchparity.check(lambda x: hidden(x), (torch.randn(3),), backend="inductor")
    assert verdict.status is Status.UNKNOWN
    assert any("nothing was compiled" in reason for reason in verdict.reasons)


def test_out_of_memory_in_the_reference_says_what_to_do():
    def model(x):
        if x.dtype == torch.float32 and torch.utils._python_dispatch._get_current_dispatch_mode():
            raise torch.OutOfMemoryError("out of memory")
        return x

    with pytest.raises(ResourceError, match="out of memory") as caught:
        torchparity.check(model, (torch.randn(3),), backend="eager")
    assert "--no-reference" in caught.value.hint
    assert caught.value.exit_code == 125


def test_assert_parity_raises_with_the_table():
    with pytest.raises(AccuracyError) as caught:
        torchparity.assert_parity(nn.Linear(4, 4), (torch.randn(2, 4),), backend=plant("scale"))
    assert "DIFFERS" in str(caught.value)
    assert "output" in str(caught.value)
    assert caught.value.verdict.status is Status.DIFFERS
    verdict = torchparity.assert_parity(nn.Linear(4, 4), (torch.randn(2, 4),), backend="aot_eager")
    assert verdict.status is Status.SAME


def test_tolerance_replaces_the_noise():
    model, inputs = nn.Linear(16, 16), (torch.randn(4, 16),)
    assert torchparity.check(model, inputs, backend=plant("scale"), tolerance=1e-2).status is Status.SAME
    assert torchparity.check(model, inputs, backend=plant("scale"), tolerance=1e-4).status is Status.DIFFERS


def test_progress_is_told_of_every_run():
    events = []
    verdict = torchparity.check(torch.sin, (torch.randn(3),), backend="eager", progress=events.append)
    assert [event.name for event in events] == [record.name for record in verdict.runs]
    assert [event.run for event in events] == list(range(1, len(events) + 1))
    assert all(event.run <= event.runs for event in events)


def test_user_loss_is_compared():
    model = nn.Linear(4, 1)
    target = torch.randn(8, 1)
    inputs = (torch.randn(8, 4),)

    def loss(output):
        return nn.functional.mse_loss(output, target)

    clean = torchparity.check(model, inputs, backend="aot_eager", train=True, loss=loss)
    assert clean.status is Status.SAME
    assert "loss" in {leaf.path for leaf in clean.leaves}
    wrong = torchparity.check(model, inputs, backend=plant("scale"), train=True, loss=loss)
    assert wrong.status is Status.DIFFERS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "inducto"}, "no torch.compile backend named 'inducto'"),
        ({"backend": 3}, "not a int"),
        ({"mode": "fast"}, "no torch.compile mode 'fast'"),
        ({"config": {"inductor.fusion": 1}}, "inductor has no setting 'fusion'"),
        ({"config": {"triton": 1}}, "'triton' is not a compiler setting"),
        ({"steps": 0, "train": True}, "0 optimizer steps"),
        ({"optimizer": "adam"}, "optimizer steps need a backward pass"),
        ({"optimizer": "adm", "train": True}, "no optimizer named 'adm'"),
        ({"autocast": "int8"}, "'int8' is not a dtype for autocast"),
        ({"loss": "median", "train": True}, "no loss named 'median'"),
        ({"tolerance": 0.0}, "a tolerance of 0.0"),
        ({"noise_runs": 1}, "1 noise runs"),
    ],
)
def test_questions_that_cannot_mean_anything(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        torchparity.check(nn.Linear(2, 2), (torch.randn(1, 2),), **{"backend": "eager", **options})
    assert caught.value.hint


def test_a_graph_compiled_for_one_backend_is_not_used_for_another():
    model, inputs = nn.Linear(4, 4), (torch.randn(2, 4),)
    for backend, status in itertools.islice(
        itertools.cycle([(plant("scale"), Status.DIFFERS), ("aot_eager", Status.SAME)]), 20
    ):
        assert torchparity.check(model, inputs, backend=backend).status is status
