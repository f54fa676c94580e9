"""Parts of graphs that write in place: who wrote what, who sees it, and what a tap shows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from torchparity.graphs.extract import Extractor


def extractor_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Extractor:
    return Extractor(symbolic_trace(function), inputs)


def named(extractor: Extractor, *names: str) -> list[Node]:
    nodes = {node.name: node for node in extractor.compute}
    return [nodes[name] for name in names]


def outputs_of(graph_module: GraphModule, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    return list(graph_module(*inputs))


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    base.view(-1).add_(1)
    return base.neg()


def on_an_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.neg()


def test_who_wrote_to_a_value_is_known_through_its_views() -> None:
    extractor = extractor_of(through_a_view, torch.ones(2, 2))
    mul, view, add, neg = named(extractor, "mul", "view", "add_", "neg")
    assert extractor.recording.writers == {(mul, neg): add}
    assert extractor.recording.written_by(add) == [mul]
    assert extractor.recording.feeders(neg) == {mul, add}
    assert extractor.recording.feeders(add) == {view}


def test_a_value_is_tapped_before_and_after_somebody_writes_to_it() -> None:
    extractor = extractor_of(through_a_view, torch.ones(2, 2))
    mul, view, add, neg = named(extractor, "mul", "view", "add_", "neg")
    tapped = extractor.tapped()
    assert (tapped.nodes, tapped.rewrites) == ([mul, view, add, neg], [(mul, add)])
    assert tapped.makers == [mul, view, add, neg, add]
    assert extractor.tapped([add]).rewrites == extractor.tapped([mul]).rewrites == []
    values = [float(value.flatten()[0]) for value in outputs_of(tapped.part.graph_module, tapped.part.inputs)]
    assert values[0] == 2.0
    assert values[2:] == [3.0, -3.0, 3.0]


def test_what_is_written_to_an_input_is_seen_by_who_reads_it_later() -> None:
    extractor = extractor_of(on_an_input, torch.ones(3))
    tapped = extractor.tapped()
    assert len(tapped.part.inputs) == 1
    (x,) = [node for node in extractor.graph_module.graph.nodes if node.op == "placeholder"]
    assert tapped.rewrites == [(x, named(extractor, "add_")[0])]
    assert torch.equal(outputs_of(tapped.part.graph_module, tapped.part.inputs)[1], torch.full((3,), -2.0))
    part = extractor.part(extractor.compute)
    assert len(part.inputs) == 1
    assert torch.equal(outputs_of(part.graph_module, part.inputs)[0], torch.full((3,), -2.0))


@pytest.mark.parametrize("kept", [["neg"], ["view", "neg"]])
def test_without_the_writer_its_reader_gets_what_was_written(kept: list[str]) -> None:
    extractor = extractor_of(through_a_view, torch.ones(2, 2))
    part = extractor.part(named(extractor, *kept))
    assert torch.equal(outputs_of(part.graph_module, part.inputs)[0], torch.full((2, 2), -3.0))


def test_a_writer_and_its_reader_stay_together_without_what_they_share() -> None:
    extractor = extractor_of(through_a_view, torch.ones(2, 2))
    part = extractor.part(named(extractor, "view", "add_", "neg"))
    assert len(part.inputs) == 1
    assert torch.equal(outputs_of(part.graph_module, part.inputs)[0], torch.full((2, 2), -3.0))


def test_a_zero_shows_the_gradient_that_reaches_a_value() -> None:
    x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    extractor = Extractor(symbolic_trace(lambda x: (x.sin() * 2).view(3, 1).exp()), (x,), gradients=True)
    sin, mul, view, exp = extractor.compute
    assert extractor.recording.views == {view: mul}
    tapped = extractor.gradients_tapped()
    assert list(tapped.owners.values())[1:] == [sin, mul, exp]
    (result,) = tapped.part.graph_module(*tapped.part.inputs)
    assert torch.equal(result, (x.sin() * 2).view(3, 1).exp())
    result.sum().backward()
    zeros = {node: value.grad for node, value in zip(tapped.owners.values(), tapped.part.inputs, strict=True)}
    assert torch.allclose(zeros[mul], result.flatten())
    assert torch.allclose(zeros[sin], 2 * result.flatten())


def test_a_wrong_gradient_begins_behind_the_last_value_that_has_one() -> None:
    x = torch.ones(3, requires_grad=True)
    extractor = Extractor(symbolic_trace(lambda x: (x.sin() * 2).view(3, 1).exp().cos()), (x,), gradients=True)
    sin, mul, view, exp, cos = extractor.compute
    tapped = extractor.gradients_tapped()
    leaves = {node: path for path, node in tapped.owners.items()}
    assert tapped.where_it_begins(["grad.x", leaves[sin], leaves[mul]]) == [view, exp]
    assert tapped.where_it_begins([leaves[exp], leaves[sin]]) == [cos]
    assert tapped.where_it_begins(["grad.x"]) == [sin]
    assert tapped.where_it_begins(["output[0]"]) == []


def test_windows_are_stretches_side_by_side() -> None:
    x = torch.tensor([0.5, 1.0, 2.0])
    extractor = Extractor(symbolic_trace(lambda x: x.sin().exp().cos().tanh().neg()), (x,))
    sin, exp, cos, tanh, neg = extractor.compute
    cut = extractor.windows(2)
    assert cut.owners["output[0]"] == [sin, exp]
    assert cut.owners["output[2]"] == [neg]
    results = outputs_of(cut.part.graph_module, cut.part.inputs)
    assert torch.equal(results[1], x.sin().exp().cos().tanh())
    assert len(cut.part.inputs) == 3
    moved = extractor.windows(2, offset=1)
    assert list(moved.owners.values())[:3] == [[sin], [exp, cos], [tanh, neg]]


def test_a_window_shares_its_inputs_and_shows_what_nobody_in_it_uses() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        base = x.sin()
        left, right = base.chunk(2)
        return (left + base[:2]) * right + base[:2]

    extractor = Extractor(symbolic_trace(model), (torch.arange(4.0),))
    cut = extractor.windows(3)
    assert len(cut.part.inputs) == len({id(value) for value in cut.part.inputs})
    names = [node.name for node in cut.part.graph_module.graph.nodes if node.op == "placeholder"]
    assert names[0] == "x"
    assert torch.equal(outputs_of(cut.part.graph_module, cut.part.inputs)[-1], model(torch.arange(4.0)))


def in_place_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.relu_(x * 2))


def test_a_value_that_nobody_sees_again_is_tapped_before_it_is_overwritten() -> None:
    extractor = extractor_of(in_place_relu, torch.tensor([-1.0, 1.0]))
    tapped = extractor.tapped()
    values = outputs_of(tapped.part.graph_module, tapped.part.inputs)
    assert torch.equal(values[0], torch.tensor([-2.0, 2.0]))
    assert torch.equal(values[1], torch.tensor([0.0, 2.0]))


def test_a_view_that_is_no_longer_used_is_tapped_before_it_is_overwritten() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        base = x * 2
        seen = base.view(-1).exp()
        base.add_(1)
        return base.sum() + seen.sum()

    extractor = extractor_of(model, torch.zeros(2))
    tapped = extractor.tapped()
    values = dict(zip(tapped.nodes, outputs_of(tapped.part.graph_module, tapped.part.inputs), strict=False))
    assert torch.equal(values[named(extractor, "view")[0]], torch.zeros(2))


def test_in_place_on_a_computed_value_that_became_an_input_does_not_raise() -> None:
    x = torch.tensor([-1.0, 1.0], requires_grad=True)
    extractor = Extractor(symbolic_trace(in_place_relu), (x,), gradients=True)
    relu, tanh = named(extractor, "relu_", "tanh")
    for part in (extractor.part([relu, tanh]), extractor.apart().part, extractor.windows(2, offset=1).part):
        assert len(outputs_of(part.graph_module, part.inputs)) > 0


def test_a_write_inside_a_window_is_seen_there() -> None:
    extractor = extractor_of(on_an_input, torch.ones(3))
    cut = extractor.windows(2)
    assert len(cut.part.inputs) == 1
    assert torch.equal(outputs_of(cut.part.graph_module, cut.part.inputs)[-1], torch.full((3,), -2.0))


def test_a_write_through_a_view_that_was_left_out_is_not_looked_for_elsewhere() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        base = x * 2
        half = base[1:]
        early = base.exp()
        half.add_(1)
        return base.neg() + early

    extractor = extractor_of(model, torch.ones(2))
    part = extractor.part(named(extractor, "exp", "add_", "neg"))
    results = outputs_of(part.graph_module, part.inputs)
    assert any(torch.equal(result, torch.tensor([-2.0, -3.0])) for result in results)


def test_what_the_graph_holds_is_not_written_to() -> None:
    holder = torch.nn.Module()
    holder.register_buffer("seen", torch.zeros(2))
    graph = Graph()
    x, seen = graph.placeholder("x"), graph.get_attr("seen")
    graph.call_method("add_", (seen, 1))
    graph.output((graph.call_function(torch.add, (x, seen)),))
    graph_module = GraphModule(holder, graph)
    extractor = Extractor(graph_module, (torch.ones(2),))
    assert torch.equal(graph_module.seen, torch.zeros(2))
    part = extractor.part(named(extractor, "add"))
    assert len(outputs_of(part.graph_module, part.inputs)) == 1


def test_zeros_leave_minus_zero_as_it_is() -> None:
    x = torch.tensor([-0.0], requires_grad=True)
    extractor = Extractor(symbolic_trace(lambda x: 1 / (x * 1.0)), (x,), gradients=True)
    part = extractor.gradients_tapped().part
    assert outputs_of(part.graph_module, part.inputs)[0].item() == -torch.inf


def test_one_of_several_results_shows_its_gradient() -> None:
    x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    extractor = Extractor(symbolic_trace(lambda x: torch.topk(x * 2, 2)[0].tanh()), (x,), gradients=True)
    tapped = extractor.gradients_tapped()
    (tanh,) = named(extractor, "tanh")
    assert [node.name for node in tapped.owners.values()] == ["x", "mul", "getitem", "tanh"]
    leaf = next(path for path, node in tapped.owners.items() if node.name == "getitem")
    assert tapped.where_it_begins([leaf]) == [tanh]


def test_operations_apart_end_with_what_libraries_compute() -> None:
    weights = torch.arange(4.0).reshape(2, 2)
    extractor = extractor_of(lambda x: torch.sin(torch.matmul(torch.cos(x), weights).split(1)[0]), torch.ones(2, 2))
    cos, matmul, split, sin = named(extractor, "cos", "matmul", "split", "sin")
    apart = extractor.apart()
    assert [extractor.recording.is_pick(node) for node in apart.results] == [False, True, False, False]
    assert apart.results[0] is cos
    assert apart.results[2:] == [sin, matmul]
    assert [apart.owners[f"output[{place}]"] for place in range(4)] == [cos, split, sin, matmul]
    for node, value in zip(apart.results, outputs_of(apart.part.graph_module, apart.part.inputs), strict=True):
        assert torch.equal(value, extractor.recording.results[node])
