"""One run: every leaf with its path, from the same state every time, and an exception is an ending."""

import copy
import random

import numpy as np
import pytest
import torch

from torchparity.errors import UsageError
from torchparity.run.bank import NoiseBank
from torchparity.run.loss import MEAN
from torchparity.run.noise import Noise
from torchparity.run.reference import NeedsPlainKernels, Reference
from torchparity.run.state import RandomState
from torchparity.run.step import Plan, Runner, describe_failure
from torchparity.run.subject import Subject


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return {"logits": self.norm(self.linear(x)), "count": 7}


X = torch.arange(12.0).reshape(4, 3)


def run(model, *args, plan=None, mode=None, **options):
    """Run once; return the leaves by path (copied, as a consumer must) and the ending."""
    runner = Runner(Subject(model, args=args, **options), plan or Plan())
    try:
        return collect(runner, model, mode=mode)
    finally:
        runner.release()


def collect(runner, function, mode=None):
    leaves = {}

    def consume(leaf):
        assert leaf.path not in leaves
        leaves[leaf.path] = leaf if not isinstance(leaf.value, torch.Tensor) else copy.copy(leaf)
        if isinstance(leaf.value, torch.Tensor):
            object.__setattr__(leaves[leaf.path], "value", leaf.value.detach().clone())

    extra = {} if mode is None else {"mode": mode}
    ending = runner.run(function, consume, **extra)
    return leaves, ending


def test_the_leaves_of_a_forward_run():
    leaves, ending = run(Net(), X)
    assert ending.failure is None
    assert list(leaves) == [
        "structure",
        "output.logits",
        "output.count",
        "parameter.linear.weight",
        "parameter.linear.bias",
        "parameter.norm.weight",
        "parameter.norm.bias",
        "buffer.seen",
        "buffer.norm.running_mean",
        "buffer.norm.running_var",
        "buffer.norm.num_batches_tracked",
        "input.args[0]",
    ]
    assert [path for path, leaf in leaves.items() if leaf.changed] == [
        "structure",
        "output.logits",
        "output.count",
        "buffer.seen",
    ]
    assert leaves["buffer.seen"].value == 1
    assert leaves["output.logits"].requires_grad  # As most callers run it: with gradients enabled.
    assert {leaf.role for leaf in leaves.values()} == {"structure", "output", "parameter", "buffer", "input"}


def test_the_leaves_of_a_training_run():
    leaves, _ = run(Net(), X, plan=Plan(training=True, backward=True))
    gradients = [path for path in leaves if path.startswith("grad.")]
    assert gradients == ["grad.linear.weight", "grad.linear.bias", "grad.norm.weight", "grad.norm.bias"]
    assert float(leaves["grad.norm.bias"].value.abs().min()) > 0
    changed = {path for path, leaf in leaves.items() if leaf.changed and leaf.role == "buffer"}
    assert {"buffer.norm.running_mean", "buffer.norm.num_batches_tracked", "buffer.seen"} <= changed
    assert leaves["output.logits"].requires_grad
    assert "loss" not in leaves


def test_gradients_of_inputs_on_request():
    plan = Plan(backward=True, input_gradients=True)
    leaves, _ = run(torch.nn.Linear(3, 3), X, plan=plan)
    assert leaves["grad.args[0]"].value.shape == X.shape
    assert "grad.args[0]" not in run(torch.nn.Linear(3, 3), X, plan=Plan(backward=True))[0]
    wanted = X.clone().requires_grad_()
    assert "grad.args[0]" in run(torch.nn.Linear(3, 3), wanted, plan=Plan(backward=True))[0]
    assert wanted.grad is None


def test_a_parameter_without_a_gradient_is_a_leaf_of_none():
    model = torch.nn.Linear(3, 3)
    leaves, _ = run(lambda x: x @ model.weight, X, plan=Plan(backward=True))
    assert leaves["grad.model.weight"].value is not None
    assert leaves["grad.model.bias"].value is None


def test_the_loss_is_a_leaf():
    leaves, _ = run(torch.nn.Linear(3, 3), X, plan=Plan(backward=True, loss=MEAN))
    assert leaves["loss"].role == "loss"
    assert leaves["loss"].value == pytest.approx(leaves["output"].value.mean().item())


def test_optimizer_steps_are_leaves():
    plan = Plan(
        training=True,
        backward=True,
        steps=2,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )
    model = torch.nn.Linear(3, 3)
    before = model.weight.detach().clone()
    leaves, ending = run(model, X, plan=plan)
    assert ending.failure is None
    first, second = (leaves[f"call[{index}].parameter.weight"] for index in (0, 1))
    assert first.changed
    assert not torch.equal(first.value, second.value)
    gradient = leaves["call[0].grad.weight"].value
    torch.testing.assert_close(first.value, before - 0.1 * gradient)
    assert torch.equal(leaves["call[0].optimizer.weight.momentum_buffer"].value, gradient)
    assert torch.equal(model.weight, before)


def test_steps_go_on_from_each_other():
    leaves, _ = run(Net(), X, plan=Plan(steps=3))
    assert [leaves[f"call[{index}].buffer.seen"].value.item() for index in range(3)] == [1, 2, 3]


def test_several_calls_have_paths_of_their_own():
    calls = [(X,), ((), {"x": X * 2})]
    leaves, _ = run(Net(), input_sets=calls)
    assert "call[0].output.logits" in leaves
    assert "call[1].input.kwargs.x" in leaves
    assert leaves["call[1].buffer.seen"].value == 2


def test_every_call_has_a_projection_of_its_own():
    leaves, _ = run(torch.nn.Linear(3, 3), X, plan=Plan(backward=True, steps=2))
    assert not torch.equal(leaves["call[0].grad.weight"].value, leaves["call[1].grad.weight"].value)


def test_a_mutated_input_is_a_changed_leaf_and_the_users_is_not_touched():
    values = X.clone()
    leaves, _ = run(lambda x, y: x.add_(1) + y, values, X)
    assert leaves["input.args[0]"].changed
    assert torch.equal(leaves["input.args[0]"].value, X + 1)
    assert not leaves["input.args[1]"].changed
    assert torch.equal(values, X)


def test_inputs_inside_containers_have_paths():
    leaves, _ = run(lambda batch, *, scale: batch["x"].mul_(2) * scale, {"x": X}, kwargs={"scale": X.clone()})
    assert leaves["input.args[0].x"].changed
    assert not leaves["input.kwargs.scale"].changed


def test_outputs_tell_what_they_share_storage_with():
    model = torch.nn.Linear(3, 3)
    function = lambda x, y: (x, y.t(), model.weight[0], x + y)  # noqa: E731
    leaves, _ = run(function, X, X.clone())
    assert [leaves[f"output[{index}]"].aliases for index in range(4)] == [
        ("args[0]",),
        ("args[1]",),
        ("parameter.model.weight",),
        (),
    ]
    assert leaves["output[1]"].strides == (1, 3)


def test_an_output_that_aliases_is_seen_as_it_was_before_the_step():
    plan = Plan(backward=True, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    model = torch.nn.Linear(3, 3)
    runner = Runner(Subject(lambda x: (model.weight, model(x)), args=(X,)), plan)
    leaves = {}
    runner.run(runner.subject.model, lambda leaf: leaves.update({leaf.path: leaf}))
    moved = leaves["parameter.model.weight"].value.clone()
    runner.release()
    assert torch.equal(leaves["output[0]"].value, model.weight)
    assert not torch.equal(moved, model.weight)


def test_a_rebound_buffer_is_a_changed_leaf():
    class Rebinds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(3))

        def forward(self, x):
            self.state = self.state + x.sum(0)
            return x

    model = Rebinds()
    state = model.state
    leaves, _ = run(model, X)
    assert leaves["buffer.state"].changed
    assert model.state is state
    assert float(state.abs().sum()) == 0


# --- the same state every time -------------------------------------------------------------------


def test_every_run_starts_from_the_same_state():
    class Restless(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.generator = torch.Generator().manual_seed(1)

        def forward(self, x, given):
            self.calls += 1
            with torch.no_grad():
                self.linear.weight.mul_(1.5)
            draws = (random.random(), np.random.rand(), torch.rand(2), torch.rand(2, generator=self.generator))
            return self.norm(self.linear(x)), self.calls, draws, torch.rand(1, generator=given), x.add_(1)

    model = Restless()
    runner = Runner(Subject(model, args=(X, torch.Generator().manual_seed(2))), Plan(training=True, backward=True))
    first, _ = collect(runner, model)
    second, _ = collect(runner, model)
    runner.release()
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        same = torch.equal if isinstance(leaf.value, torch.Tensor) else lambda left, right: left == right
        assert same(leaf.value, second[path].value), path


def test_a_buffer_that_came_into_the_graph_does_not_spoil_the_next_run():
    class Remembers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("memory", torch.zeros(3))

        def forward(self, x):
            self.memory.add_(self.weight)
            return x * self.memory

    model = Remembers()
    runner = Runner(Subject(model, args=(X,)), Plan(backward=True))
    (first, one), (second, other) = (collect(runner, model) for _ in range(2))
    runner.release()
    assert (one.failure, other.failure) == (None, None)
    assert torch.equal(first["grad.weight"].value, second["grad.weight"].value)


def test_release_leaves_everything_as_it_was_found():
    model = Net()
    model.train()
    model.norm.eval()
    model(X)["logits"].sum().backward()
    gradient = model.linear.weight.grad
    given = torch.Generator().manual_seed(2)
    before = copy.deepcopy(model.state_dict()), gradient.clone(), given.get_state()
    generators = RandomState()
    expected = torch.rand(3), np.random.rand(), random.random()
    generators.restore()
    runner = Runner(
        Subject(lambda x, g: model(x)["logits"] + torch.rand(3, generator=g), args=(X, given)), Plan(backward=True)
    )
    _, ending = collect(runner, runner.subject.model)
    assert ending.failure is None
    runner.release()
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert model.linear.weight.grad is gradient
    assert torch.equal(gradient, before[1])
    assert (model.training, model.norm.training) == (True, False)
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(), random.random()) == expected[1:]
    assert torch.equal(given.get_state(), before[2])


def test_the_mode_covers_forward_backward_and_optimizer():
    reference = Reference()
    plan = Plan(backward=True, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    model = torch.nn.Linear(3, 3)
    runner = Runner(Subject(model, args=(X,)), plan)
    seen = {}

    def consume(leaf):
        if isinstance(leaf.value, torch.Tensor) and leaf.changed:
            seen[leaf.path] = reference.shadows.has(leaf.value)

    runner.run(model, consume, mode=lambda: reference)
    runner.release()
    assert all(seen.values())
    assert {"output", "grad.weight", "grad.bias", "parameter.weight", "parameter.bias"} == set(seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_takes_the_projection_as_it_is(dtype):
    """The tangents are ours, not the model's: they are no random numbers of it, and exact as they are."""
    model = torch.nn.Linear(3, 3, bias=False).to(dtype)
    reference = Reference()
    runner = Runner(Subject(model, args=(torch.eye(3, dtype=dtype),)), Plan(backward=True))
    seen = {}

    def consume(leaf):
        if leaf.role == "gradient":
            seen["gradient"], seen["shadow"] = leaf.value.clone(), reference.value(leaf.value).clone()
            seen["random"] = reference.is_random(leaf.value)

    runner.run(model, consume, mode=lambda: reference)
    runner.release()
    assert torch.equal(seen["shadow"], seen["gradient"].double())
    assert not seen["random"]
    assert not reference.random_operations


def test_autocast_is_on_for_the_forward_pass():
    leaves, _ = run(torch.nn.Linear(3, 3), X, plan=Plan(autocast=torch.bfloat16))
    assert leaves["output"].value.dtype == torch.bfloat16


def test_noise_runs_over_expanded_state_and_inputs():
    class Expands(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", X[:, :1].expand(4, 3))

        def forward(self, x):
            return x * self.scale

    model = Expands()
    noise = Noise(NoiseBank(1), run=1, amplitude=1.0, replay=[])
    runner = Runner(Subject(model, args=(X[:1].expand(4, 3),)), Plan())
    ending = runner.run(model, lambda leaf: None, mode=lambda: noise)
    runner.release()
    assert ending.failure is None


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(),
        lambda x: torch.nested.as_nested_tensor([x, x[:1]], layout=torch.jagged),
        lambda x: torch.nested.as_nested_tensor([x, x[:1]], layout=torch.strided),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: torch.complex(x, x).conj(),
        lambda x: x[:0],
    ],
    ids=["sparse", "jagged", "nested", "quantised", "eight bits", "conjugate", "empty"],
)
def test_odd_outputs_are_leaves(make):
    leaves, ending = run(make, X)
    assert ending.failure is None
    assert "output" in leaves


# --- endings -------------------------------------------------------------------------------------


def raises(x):
    raise ValueError("first line\nsecond line")


def test_an_exception_is_an_ending():
    leaves, ending = run(raises, X)
    assert leaves == {}
    failure = ending.failure
    assert (failure.type, failure.message, failure.stage) == ("ValueError", "first line", "run")
    assert failure.frame.endswith(" raises")
    assert "second line" in failure.traceback
    assert not ending.out_of_memory
    assert ending.seconds >= 0


def test_an_exception_in_the_second_call_keeps_the_leaves_of_the_first():
    def fails_on_wide(x):
        if x.shape[0] > 4:
            raise ValueError("too wide")
        return x + 1

    leaves, ending = run(fails_on_wide, input_sets=[(X,), (torch.ones(5, 3),)])
    assert "call[0].output" in leaves
    assert ending.failure.message == "too wide"


def test_an_exception_in_the_backward_pass_is_an_ending():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 1

        @staticmethod
        def backward(context, gradient):
            raise RuntimeError("no way back")

    leaves, ending = run(Fails.apply, X.clone().requires_grad_(), plan=Plan(backward=True))
    assert "output" in leaves
    assert ending.failure.message == "no way back"


def test_the_model_is_given_back_after_an_exception():
    class Breaks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            raise ValueError("broken")

    model = Breaks()
    _, ending = run(model, X)
    assert ending.failure.type == "ValueError"
    assert model.seen == 0


def test_running_out_of_memory_is_told_apart():
    def exhausts(x):
        raise torch.OutOfMemoryError("out of memory")

    assert run(exhausts, X)[1].out_of_memory


@pytest.mark.parametrize("error", [UsageError("wrong", hint="right"), NeedsPlainKernels("lstm")])
def test_our_own_exceptions_go_through(error):
    def fails(x):
        raise error

    with pytest.raises(type(error)):
        run(fails, X)


def test_a_failure_does_not_keep_tensors_alive():
    import gc
    import weakref

    def fails(x):
        temporary = x + 1
        fails.held = weakref.ref(temporary)
        raise ValueError("broken")

    _, ending = run(fails, X)
    gc.collect()
    assert ending.failure is not None
    assert fails.held() is None


def test_an_exception_without_a_message_has_facts_too():
    failure = describe_failure(KeyError(), "forward")
    assert (failure.type, failure.message, failure.frame) == ("KeyError", "", "")
