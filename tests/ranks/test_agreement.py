"""Graphs as ranks compare them: the same where they mean the same, and the first place where they do not."""

from __future__ import annotations

import torch

from torchparity.ranks.agreement import Line, first_difference, lines_of


def graph_of(function, *args, dynamic=None):
    kept = []

    def backend(graph_module, inputs):
        kept.append(lines_of(graph_module, inputs))
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return kept[0]


def texts(lines):
    return [line.text for line in lines]


def test_a_graph_tells_its_inputs_its_calls_and_the_users_lines():
    lines = graph_of(lambda x: (x.relu() + 1).sum(0), torch.randn(3, 4))
    assert lines[0].text == "input float32[3, 4] cpu"
    assert "relu" in lines[1].text
    assert "%1, 1" in lines[2].text
    assert "test_agreement.py:" in lines[1].source


def test_values_and_names_do_not_matter_and_shapes_do():
    def function(x):
        return x * 2

    assert texts(graph_of(function, torch.ones(3))) == texts(graph_of(function, torch.zeros(3)))
    assert texts(graph_of(function, torch.ones(3))) != texts(graph_of(function, torch.ones(4)))
    assert texts(graph_of(function, torch.ones(3), dynamic=True)) == texts(
        graph_of(function, torch.ones(4), dynamic=True)
    )


def test_the_device_number_of_a_rank_does_not_matter():
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.zeros, (3,), {"device": torch.device("cuda", 1)}))
    assert texts(lines_of(torch.fx.GraphModule({}, graph), []))[0].endswith("zeros(3, device=cuda)")


def test_the_rank_that_is_not_like_most_others_is_named():
    usual = [Line(name="x", text="input"), Line(name="y", text="sin(%0)")]
    other = [Line(name="x", text="input"), Line(name="y", text="cos(%0)", source="m.py:3 in forward")]
    found = first_difference(2, ["b", "a", "a"], [other, usual, usual])
    assert (found.rank, found.against, found.graph, found.node) == (0, 1, 2, "y")
    assert (found.here, found.there, found.source) == ("cos(%0)", "sin(%0)", "m.py:3 in forward")


def test_a_graph_that_ends_early_or_is_not_there():
    lines = [Line(name="x", text="input"), Line(name="y", text="sin(%0)")]
    found = first_difference(1, ["a", "b"], [lines, lines[:1]])
    assert (found.rank, found.node, found.here, found.there) == (1, "y", "nothing", "sin(%0)")
    found = first_difference(3, ["a", "b"], [lines, []])
    assert (found.node, found.here, found.there) == ("", "nothing", "a graph of 2 nodes")
