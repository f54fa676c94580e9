"""Whatever graph and whatever predicate: what is adopted is smaller, valid and fails; the end is the exact minimum."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule

from torchparity.graphs.extract import Extractor
from torchparity.graphs.recording import Recording
from torchparity.graphs.search import foresee, kept_of, needed
from torchparity.minifier.gate import Direct, Gate
from torchparity.minifier.reduction import reduce_graph, reduce_part

ONE = [torch.relu, torch.tanh, torch.abs, torch.neg]
TWO = [torch.add, torch.mul, torch.maximum]
CULPRITS = [torch.sin, torch.cos, torch.exp, torch.sigmoid]


@st.composite
def graphs(draw):
    """A random graph of one and two armed operations with some culprits in it; several inputs and outputs."""
    graph = Graph()
    inputs = [torch.randn(3, 4) for _ in range(draw(st.integers(1, 3)))]
    values = [graph.placeholder(f"x{place}") for place in range(len(inputs))]
    length = draw(st.integers(4, 30))
    count = draw(st.integers(1, 3))
    places = draw(st.lists(st.integers(0, length - 1), min_size=count, max_size=count, unique=True))
    for place in range(length):
        pick = st.sampled_from(values[-6:])
        if place in places:
            values.append(graph.call_function(CULPRITS[places.index(place)], (draw(pick),)))
        elif draw(st.booleans()):
            values.append(graph.call_function(draw(st.sampled_from(ONE)), (draw(pick),)))
        elif draw(st.integers(0, 5)) == 0:
            values.append(graph.call_method("add_", (draw(pick.filter(lambda node: node.op != "placeholder")), 1.0)))
        else:
            values.append(graph.call_function(draw(st.sampled_from(TWO)), (draw(pick), draw(pick))))
    outputs = draw(st.lists(st.sampled_from(values[len(inputs) :]), min_size=1, max_size=4, unique=True))
    graph.output((*outputs, values[-1]))
    return GraphModule({}, graph), inputs, [CULPRITS[number] for number in range(count)]


def called(graph_module):
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


class Watching(Direct):
    """Notes everything that is adopted."""

    def __init__(self, predicate):
        super().__init__(predicate)
        self.adopted = []

    def adopt(self, part):
        self.adopted.append(part)


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_what_is_adopted_is_smaller_and_valid_and_fails_and_the_end_is_the_minimum(made):
    graph_module, inputs, wanted = made

    def fails(graph_module, inputs):
        return set(wanted) <= set(called(graph_module))

    watching = Watching(fails)
    gate = Gate(watching)
    reduce_part(gate, Extractor(graph_module, inputs))
    sizes = [part.size for part in watching.adopted]
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))
    for part in watching.adopted:
        part.graph_module.graph.lint()
        assert Recording(part.graph_module, part.inputs).raised is None
        assert fails(part.graph_module, part.inputs)
    assert sorted(map(str, called(gate.current.graph_module))) == sorted(map(str, wanted))
    assert gate.current.compute_nodes == len(wanted)


@settings(max_examples=12, deadline=None)
@given(graphs())
def test_reducing_twice_changes_nothing(made):
    graph_module, inputs, wanted = made

    def fails(graph_module, inputs):
        return set(wanted) <= set(called(graph_module)) and all(value.shape[-1] >= 2 for value in inputs)

    first = reduce_graph(graph_module, inputs, fails=fails)
    second = reduce_graph(first.graph_module, first.inputs, fails=fails)
    assert second.graph_module.code == first.graph_module.code
    assert [value.tolist() for value in second.inputs] == [value.tolist() for value in first.inputs]


@given(st.integers(1, 40), st.data(), st.integers(1, 5))
def test_asking_ahead_comes_to_the_same_end_and_asks_the_next_question_first(count, data, width):
    wanted = set(data.draw(st.lists(st.integers(0, count - 1), max_size=4)))
    answers = {tuple(range(count)): True}
    while questions := foresee(count, answers, width):
        assert len(questions) <= width
        assert questions[0] == foresee(count, answers, 1)[0]
        for question in questions:
            answers[question] = wanted <= set(question)
    assert set(kept_of(count, answers)) == wanted
    if wanted:
        assert set(needed(range(count), lambda kept: wanted <= set(kept))) == wanted
