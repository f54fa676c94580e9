"""Planted culprits under predicates that need no compiler: the exact minimum, and a ceiling of queries."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from torchparity import UsageError
from torchparity.graphs.recording import Recording
from torchparity.minifier.reduction import reduce_graph


def chain(length, culprits):
    graph = Graph()
    value = graph.placeholder("x")
    for place in range(length):
        value = graph.call_function(culprits.get(place, torch.relu), (value,))
    graph.output((value,))
    return GraphModule({}, graph), [torch.randn(4)]


def residual(blocks, culprit):
    graph = Graph()
    value = graph.placeholder("x")
    outputs = []
    for block in range(blocks):
        inside = graph.call_function(torch.sin if block == culprit else torch.relu, (value,))
        value = graph.call_function(operator.add, (value, graph.call_function(torch.tanh, (inside,))))
        outputs.append(value)
    outputs.append(graph.call_function(torch.abs, (value,)))
    graph.output(tuple(outputs))
    return GraphModule({}, graph), [torch.randn(4)]


def targets(graph_module):
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


def has(*wanted):
    return lambda graph_module, inputs: set(wanted) <= set(targets(graph_module))


def takes(expected, wanted):
    """The wanted function is called with just this value."""

    def fails(graph_module, inputs):
        seen = Recording(graph_module, inputs).seen
        return any(user.target is wanted and torch.equal(value, expected) for (_, user), value in seen.items())

    return fails


def depends(first, second):
    """Second takes, directly or not, what first gives."""

    def fails(graph_module, inputs):
        behind = {}
        for node in graph_module.graph.nodes:
            behind[node] = {node.target}.union(*(behind[argument] for argument in node.all_input_nodes))
            if node.target is second and first in behind[node]:
                return True
        return False

    return fails


@pytest.mark.parametrize("length", [50, 200, 800])
def test_one_culprit_in_a_chain(length):
    result = reduce_graph(*chain(length, {length * 2 // 3: torch.sin}), fails=has(torch.sin))
    assert targets(result.graph_module) == [torch.sin]
    assert result.compute_nodes == 1
    assert result.queries <= 25


@pytest.mark.parametrize("length", [100, 800])
@pytest.mark.parametrize(
    "predicate", [has(torch.sin, torch.cos), depends(torch.sin, torch.cos)], ids=["both", "linked"]
)
def test_two_culprits_in_a_chain(length, predicate):
    graph_module, inputs = chain(length, {length // 3: torch.sin, length * 3 // 4: torch.cos})
    result = reduce_graph(graph_module, inputs, fails=predicate)
    assert targets(result.graph_module) == [torch.sin, torch.cos]
    assert len(result.inputs) == 1
    assert result.queries <= 35


@pytest.mark.parametrize("blocks", [20, 80])
def test_a_residual_graph_with_many_outputs(blocks):
    result = reduce_graph(*residual(blocks, blocks // 3), fails=has(torch.sin))
    assert targets(result.graph_module) == [torch.sin]
    assert result.queries <= 25


def test_linked_culprits_over_residual_blocks():
    result = reduce_graph(*residual(80, 27), fails=depends(torch.sin, torch.abs))
    assert targets(result.graph_module) == [torch.sin, torch.abs]
    assert result.queries <= 40


def test_any_two_of_three_culprits():
    culprits = {20: torch.sin, 60: torch.cos, 93: torch.exp}

    def fails(graph_module, inputs):
        return len(set(culprits.values()) & set(targets(graph_module))) >= 2

    assert reduce_graph(*chain(100, culprits), fails=fails).compute_nodes == 2


def test_a_culprit_inside_a_body():
    def deep(x):
        for _ in range(5):
            x = x.cos() + 1
        return (x * 2).sin().cos()

    def function(x):
        for _ in range(10):
            x = x.relu()
        x = torch.cond(x.sum() > 0, deep, lambda value: value.cos() - 1, (x,))
        return x.abs()

    caught = []

    def backend(graph_module, inputs):
        caught.append((graph_module, [torch.rand(3)]))
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(function, backend=backend)(torch.rand(3))

    def fails(graph_module, inputs):
        bodies = [module for module in graph_module.modules() if isinstance(module, GraphModule)]
        used = {str(node.target) for node in graph_module.graph.nodes}
        graph_module(*inputs)
        return any("sin" in str(node.target) for body in bodies for node in body.graph.nodes) and "cond" in used

    result = reduce_graph(*caught[0], fails=fails)
    assert result.compute_nodes == 1
    bodies = [module for name, module in result.graph_module.named_modules() if name]
    operations = [node.target for body in bodies for node in body.graph.nodes if node.op.startswith("call")]
    assert operations == ["sin"]


def test_a_node_becomes_an_input_with_the_value_it_had():
    graph_module, inputs = chain(10, {7: torch.sin})
    with torch.no_grad():
        expected = inputs[0].relu()
    result = reduce_graph(graph_module, inputs, fails=takes(expected, torch.sin))
    assert targets(result.graph_module) == [torch.sin]


def test_values_are_those_of_their_time_under_in_place_operations():
    graph = Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.mul, (x, 2.0))
    before = graph.call_function(torch.sin, (doubled,))
    graph.call_method("add_", (doubled, 1.0))
    after = graph.call_function(torch.cos, (doubled,))
    graph.output((before, after))
    graph_module = GraphModule({}, graph)
    for function, value in ((torch.cos, 3.0), (torch.sin, 2.0)):
        seen = reduce_graph(graph_module, [torch.ones(2)], fails=takes(torch.full((2,), value), function))
        assert targets(seen.graph_module) == [function]
        assert torch.equal(seen.inputs[0], torch.full((2,), value))


def test_what_an_in_place_operation_did_to_a_value_stays_visible():
    graph = Graph()
    x = graph.placeholder("x")
    base = graph.call_function(torch.mul, (x, 2.0))
    graph.call_method("add_", (graph.call_function(torch.ops.aten.alias.default, (base,)), 1.0))
    graph.output((graph.call_function(torch.neg, (graph.call_function(torch.tanh, (base,)),)),))

    def fails(graph_module, inputs):
        before = [value.clone() for value in inputs]
        outputs = graph_module(*inputs)
        changed = {node.target for node in graph_module.graph.nodes} >= {"add_", torch.ops.aten.alias.default}
        return changed and any(torch.equal(value, before[0] * 2.0 + 1.0) for value in outputs)

    whole = GraphModule({}, graph)
    result = reduce_graph(whole, [torch.ones(2)], fails=lambda *given: given[0] is not None and any_of(fails, given))
    assert result.compute_nodes == 3


def any_of(fails, given):
    """The graph as it is returns other values; only its parts are asked."""
    graph_module, inputs = given
    return torch.neg in targets(graph_module) or fails(graph_module, inputs)


def test_reducing_twice_changes_nothing():
    first = reduce_graph(*residual(20, 5), fails=depends(torch.sin, torch.abs))
    second = reduce_graph(first.graph_module, first.inputs, fails=depends(torch.sin, torch.abs))
    assert second.graph_module.code == first.graph_module.code


def test_the_predicate_may_spoil_what_it_gets():
    def fails(graph_module, inputs):
        found = torch.sin in targets(graph_module)
        for node in reversed(list(graph_module.graph.nodes)):
            graph_module.graph.erase_node(node)
        for value in inputs:
            value.zero_()
        return found

    graph_module, inputs = chain(20, {7: torch.sin})
    result = reduce_graph(graph_module, inputs, fails=fails)
    assert targets(result.graph_module) == [torch.sin]
    assert len(list(graph_module.graph.nodes)) == 22
    assert inputs[0].any()


def test_a_graph_that_does_not_fail_is_refused():
    with pytest.raises(UsageError, match="does not fail as it is"):
        reduce_graph(*chain(3, {}), fails=has(torch.sin))
