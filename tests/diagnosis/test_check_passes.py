"""Passes of the user's, right and wrong, and inductor's own."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

import torchparity
from torchparity import Status
from torchparity.torchapi import patched_config
from torchparity.torchapi.inductor import custom_pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)) + 0.0)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def inserted(graph_module, after, function, *arguments):
    node = next(entry for entry in graph_module.graph.nodes if entry.target is after)
    users = list(node.users)
    with graph_module.graph.inserting_after(node):
        made = graph_module.graph.call_function(function, (node, *arguments))
    for user in users:
        user.replace_input_with(node, made)
    graph_module.recompile()
    return graph_module


def nothing(graph_module):
    return graph_module


def clean(graph_module):
    """Take `+ 0.0` away: the numbers stay."""
    node = next(
        (entry for entry in graph_module.graph.nodes if entry.op == "call_function" and 0.0 in entry.args), None
    )
    if node is not None:
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)
        graph_module.recompile()
    # As torch.fx's own passes do, one may also return nothing.


def scales(graph_module):
    return inserted(graph_module, torch.relu, torch.mul, 1.001)


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def half(x):
    return HalfGradient.apply(x)


def halves_gradients(graph_module):
    return inserted(graph_module, torch.relu, half)


def nudge(x, weight):
    with torch.no_grad():
        weight.mul_(1.01)
    return x


def nudges_weights(graph_module):
    """Change a parameter after it was used: outputs and gradients of one call stay as they were."""
    output = graph_module.graph.output_node()
    with graph_module.graph.inserting_before(output):
        weight = graph_module.graph.get_attr("second.bias")
        made = graph_module.graph.call_function(nudge, (output.args[0], weight))
    output.args = (made,)
    graph_module.recompile()
    return graph_module


def raises(graph_module):
    raise ValueError("this pass has a bug of its own")


@pytest.mark.parametrize(
    ("wrong", "roles"),
    [(scales, ("output", "grad.")), (halves_gradients, ("grad.", "parameter.")), (nudges_weights, ("parameter.",))],
)
def test_one_wrong_pass_among_many_is_named(net, wrong, roles):
    passes = [*[nothing] * 9, clean, wrong, *[nothing] * 9]
    report = torchparity.check_passes(net, (torch.randn(4, 6),), passes=passes)
    assert report.status is Status.DIFFERS
    assert report.first is not None
    assert report.first.name == wrong.__name__
    assert report.first.number == passes.index(wrong)
    assert report.first.leaf.startswith(roles)
    assert [entry.status for entry in report.passes].count(Status.DIFFERS) == 1
    assert "+" in report.first.difference


def test_right_passes_are_passed_over(net):
    report = torchparity.check_passes(net, (torch.randn(4, 6),), passes=[nothing, clean, nothing], iterations=2)
    assert report.status is Status.SAME
    assert [entry.changed for entry in report.passes] == [False, True, False]
    assert "-" in report.passes[1].difference


def test_a_pass_that_raises_stops_nothing(net):
    report = torchparity.check_passes(net, (torch.randn(4, 6),), passes=[raises, scales])
    assert [entry.status for entry in report.passes] == [Status.UNKNOWN, Status.DIFFERS]
    assert "a bug of its own" in report.notes[0]


def test_the_model_is_left_as_it_was(net):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torchparity.check_passes(net, (torch.randn(4, 6),), passes=[nudges_weights], optimizer="adam", iterations=2)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_what_cannot_be_traced_is_refused():
    def model(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(torchparity.UsageError, match="passes work on graphs"):
        torchparity.check_passes(model, (torch.ones(2),), passes=[nothing])


def test_iterations_are_counted(net):
    with pytest.raises(torchparity.UsageError, match="0 iterations"):
        torchparity.check_passes(net, (torch.ones(2, 6),), passes=[nothing], iterations=0)


def wrong_relu(graph):
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.relu.default:
            users = list(node.users)
            with graph.inserting_after(node):
                made = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.01))
                made.meta = dict(node.meta)
            for user in users:
                user.replace_input_with(node, made)


def test_inductors_own_passes_are_watched_and_a_wrong_one_is_named(net):
    with patched_config({"inductor.post_grad_custom_pre_pass": custom_pass(wrong_relu)}):
        report = torchparity.check_passes(net, (torch.randn(4, 6),))
    assert len(report.passes) >= 20
    assert report.first is not None
    assert report.first.name == "post_grad_custom_pre_pass"
    assert report.first.stage == "post_grad_passes"


def test_a_compilation_of_ones_own_is_watched_and_nothing_stops_it(net):
    with torchparity.watch_passes() as watch:
        watch._attempt(lambda: 1 / 0)  # As a check that goes wrong would.
        compiled = torch.compile(net)
        result = compiled(torch.ones(4, 6))
        result.sum().backward()
    assert torch.allclose(result, net(torch.ones(4, 6)), atol=1e-5)
    assert watch.report is not None
    assert watch.report.first is None
    assert {entry.stage for entry in watch.report.passes} >= {"joint_graph_passes", "post_grad_passes"}
    assert any("ZeroDivisionError" in note for note in watch.report.notes)
    assert all(entry.status is Status.SAME for entry in watch.report.passes if entry.changed)
    torch.compiler.reset()
    assert isinstance(torch.fx.symbolic_trace(net), GraphModule)
