"""Each pass by itself, under predicates that say just what must stay: the exact minimum that is left."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule

from torchparity.graphs.part import Part
from torchparity.graphs.recording import Recording
from torchparity.minifier.edits import runs_alike
from torchparity.minifier.gate import Direct, Gate
from torchparity.minifier.reduction import reduce_graph
from torchparity.minifier.shapes import cut_axes

aten = torch.ops.aten


def graph_of(build, *inputs):
    graph = Graph()
    nodes = [graph.placeholder(f"x{place}") for place in range(len(inputs))]
    graph.output((build(graph, *nodes),))
    return GraphModule({}, graph), list(inputs)


def call(function, *args, **kwargs):
    return lambda graph, *nodes: graph.call_function(
        function, tuple(nodes[entry.number] if isinstance(entry, At) else entry for entry in args), kwargs
    )


def stays(graph_module, inputs, also=lambda graph_module, inputs: True):
    """The call is still there, and whatever else is wanted holds."""
    called = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    return len(called) == 1 and also(graph_module, inputs)


def reduced(graph_module, inputs, also=lambda graph_module, inputs: True):
    return reduce_graph(graph_module, inputs, fails=lambda *given: stays(*given, also))


class At:
    def __init__(self, number):
        self.number = number


def target_of(graph_module):
    return next(node for node in graph_module.graph.nodes if node.op == "call_function")


def test_every_dimension_shrinks_to_one_where_nothing_holds_it():
    graph_module, inputs = graph_of(call(torch.matmul, At(0), At(1)), torch.randn(64, 768), torch.randn(768, 30))
    result = reduced(graph_module, inputs)
    assert [tuple(value.shape) for value in result.inputs] == [(1, 1)]  # One input for both, once they are alike.


@pytest.mark.parametrize("least", [2, 3, 17, 33])
def test_a_dimension_shrinks_to_the_least_size_that_fails(least):
    graph_module, inputs = graph_of(call(torch.softmax, At(0), -1), torch.randn(8, 64))
    result = reduced(graph_module, inputs, lambda graph_module, inputs: inputs[0].shape[1] >= least)
    assert tuple(result.inputs[0].shape) == (1, least)


def test_shapes_in_the_graph_follow_those_of_the_inputs():
    graph_module, inputs = graph_of(call(aten.view.default, At(0), [64, 12, 8]), torch.randn(64, 96))
    result = reduced(graph_module, inputs, lambda graph_module, inputs: inputs[0].shape[0] >= 3)
    assert result.inputs[0].shape[0] == 3
    assert result.graph_module(*result.inputs)[0].shape[0] == 3


def test_what_an_edit_tries_leaves_the_shapes_of_the_part_that_it_tried_it_on():
    graph_module, inputs = graph_of(call(torch.sin, At(0)), torch.randn(4, 6))
    part = Part(graph_module, tuple(inputs), 1)
    before = runs_alike(part, Part(*graph_of(call(torch.sin, At(0)), torch.randn(4, 6)), 1))
    assert cut_axes(before, axes=((0, 0),)).inputs[0].shape == (1, 6)
    assert target_of(before.graph_module).meta["val"].shape == (4, 6)


def test_an_index_stays_inside_a_table_that_shrinks():
    graph_module, inputs = graph_of(
        call(torch.nn.functional.embedding, At(0), At(1)), torch.randint(500, 1000, (4, 6)), torch.randn(1000, 32)
    )
    result = reduced(graph_module, inputs, lambda graph_module, inputs: inputs[1].shape[0] >= 2)
    assert result.inputs[1].shape == (2, 1)
    assert result.graph_module(*result.inputs)[0].shape[-1] == 1


def test_rows_go_where_rows_and_columns_have_one_size():
    labels = torch.full((8, 8), -1)
    labels[:, 0] = torch.arange(8)
    graph_module, inputs = graph_of(
        call(torch.nn.functional.multilabel_margin_loss, At(0), At(1)), torch.randn(8, 8), labels
    )
    result = reduced(
        graph_module, inputs, lambda graph_module, inputs: inputs[1].shape[-1] >= 3 and inputs[1].min() < 0
    )
    assert [tuple(value.shape) for value in result.inputs] == [(1, 3), (1, 3)]
    assert result.inputs[1].min() == -1


def test_a_cut_that_the_model_does_not_take_is_never_asked_about():
    def fails(graph_module, inputs):
        assert Recording(graph_module, inputs).raised is None
        return True

    graph_module, inputs = graph_of(
        call(torch.nn.functional.conv2d, At(0), At(1)), torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    )
    assert reduced(graph_module, inputs, fails).compute_nodes == 1


def test_two_alike_inputs_become_one_unless_they_must_differ():
    graph_module, inputs = graph_of(call(torch.add, At(0), At(1)), torch.randn(3), torch.randn(3))
    assert len(reduced(graph_module, inputs).inputs) == 1
    apart = reduced(graph_module, inputs, lambda graph_module, inputs: len(inputs) == 2 and not torch.equal(*inputs))
    assert len(apart.inputs) == 2


def test_a_number_that_was_an_input_stands_in_the_graph():
    graph_module, inputs = graph_of(call(torch.mul, At(0), At(1)), torch.randn(3), 7)
    result = reduced(graph_module, inputs)
    assert len(result.inputs) == 1


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (lambda value: True, torch.ones(1)),
        (lambda value: len(value) >= 3 and value[0] != value[1], torch.arange(3.0)),
        (lambda value: len(value) >= 2 and bool((value < 0).any()), None),
        (lambda value: bool((value > 100).any()), torch.tensor([120.0])),
    ],
    ids=["ones", "arange", "seeded", "rounded"],
)
def test_values_are_the_plainest_that_fail(predicate, expected):
    graph_module, inputs = graph_of(call(torch.sin, At(0)), torch.tensor([123.456, -3.25, 0.5, 7.0]))
    result = reduced(graph_module, inputs, lambda graph_module, inputs: predicate(inputs[0]))
    if expected is None:
        expected = torch.randn(result.inputs[0].shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(result.inputs[0], expected)


def test_dtypes_become_plain_where_they_may():
    graph_module, inputs = graph_of(call(aten._to_copy.default, At(0), dtype=torch.bfloat16), torch.randn(4).bfloat16())
    result = reduced(graph_module, inputs)
    assert result.inputs[0].dtype == torch.float32
    kept = reduced(graph_module, inputs, lambda graph_module, inputs: inputs[0].dtype == torch.bfloat16)
    assert kept.inputs[0].dtype == torch.bfloat16


def test_arguments_go_where_they_have_a_default_and_numbers_become_simple():
    graph_module, inputs = graph_of(call(aten.add.Tensor, At(0), At(0), alpha=0.7071), torch.randn(4))
    assert dict(target_of(reduced(graph_module, inputs).graph_module).kwargs) == {}
    needs = reduced(graph_module, inputs, lambda graph_module, inputs: "alpha" in target_of(graph_module).kwargs)
    assert target_of(needs.graph_module).kwargs["alpha"] == 1.0


def test_a_tensor_that_the_graph_holds_becomes_an_input():
    graph = Graph()
    value = graph.call_function(torch.sin, (graph.get_attr("held"),))
    graph.output((value,))
    root = torch.nn.Module()
    root.register_buffer("held", torch.randn(5))
    result = reduced(GraphModule(root, graph), [])
    assert [node.op for node in result.graph_module.graph.nodes] == ["placeholder", "call_function", "output"]
    assert torch.equal(result.inputs[0], torch.ones(1)) or result.inputs[0].numel() <= 5


def test_inputs_that_share_memory_share_it_in_every_question():
    base = torch.arange(6.0)

    def fails(graph_module, inputs):
        return len(inputs) == 2 and inputs[0].untyped_storage().data_ptr() == inputs[1].untyped_storage().data_ptr()

    graph_module, inputs = graph_of(call(torch.add, At(0), At(1)), base[:4], base[2:])
    assert fails(*[(part := reduce_graph(graph_module, inputs, fails=fails)).graph_module, part.inputs])


def test_the_gate_adopts_only_what_is_smaller_and_asks_nothing_twice():
    asked = []

    def predicate(graph_module, inputs):
        asked.append(graph_module.code)
        return True

    graph_module, inputs = graph_of(call(torch.sin, At(0)), torch.randn(4))
    gate = Gate(Direct(predicate))
    small, large = Part(graph_module, (torch.randn(2),), 1), Part(graph_module, tuple(inputs), 1)
    assert gate.fails(small)
    assert gate.fails(large)
    assert gate.fails(small)
    assert gate.current is small
    assert len(asked) == gate.queries == 2
