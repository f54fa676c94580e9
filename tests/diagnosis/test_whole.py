"""Models that differ although each of their graphs agrees alone."""

from __future__ import annotations

import sys

import pytest
import torch

import torchparity
from torchparity.diagnosis.whole import blame_whole
from torchparity.request import Request
from torchparity.run.subject import Subject

SOURCE = """
import torch

scratch = {}


def reuses_memory(graph_module, inputs, **options):
    # Wrong only where two graphs are compiled: the second adds what the first left behind.

    def run(*args):
        results = graph_module(*args)
        if any("sin" in str(node.target) for node in graph_module.graph.nodes):
            scratch["left"] = torch.full_like(results[0], 0.5)
            return results
        left = scratch.pop("left", torch.zeros_like(results[0]))
        return (results[0] + left, *results[1:])

    return run
"""


def broken(x):
    y = torch.sin(x)
    torch._dynamo.graph_break()
    y = torch.cos(y)
    torch._dynamo.graph_break()
    return torch.exp(y)


@pytest.fixture
def backend(tmp_path, monkeypatch):
    (tmp_path / "reusing_backend.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import reusing_backend

    yield reusing_backend.reuses_memory
    del sys.modules["reusing_backend"]


def test_what_lies_between_two_graphs_is_found(backend):
    found = blame_whole(Subject(broken, (torch.randn(5),)), Request(backend=backend))
    assert found.stage == "between"
    assert "graph 1" in found.part
    assert "graph 2" in found.part
    assert "graph 3" not in found.part
    assert found.passing is not None
    assert found.passing.change == "Dynamo alone"


def test_a_model_that_agrees_is_refused():
    with pytest.raises(torchparity.UsageError, match="does not fail: same"):
        blame_whole(Subject(broken, (torch.randn(5),)), Request(backend="eager"))
