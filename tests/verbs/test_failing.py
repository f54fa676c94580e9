"""Which graph of a model is taken for its failure: one that fails as the model does, before one that is merely odd."""

from __future__ import annotations

import pytest

import torchparity
from torchparity import Severity, Status
from torchparity.verbs.diagnose import share_of

MODEL = """
import torch
from torch._dynamo import register_backend


@register_backend(name="strides_and_values")
def strides_and_values(graph_module, inputs, **options):
    called = {str(node.target) for node in graph_module.graph.nodes}

    def run(*arguments):
        results = graph_module(*arguments)
        if any("cos" in name for name in called):
            results = tuple(result.t().contiguous().t() for result in results)
        return tuple(result + WRONG for result in results) if any("sin" in name for name in called) else results

    return run


def model(x):
    odd = torch.cos(x)
    print(end="")
    return odd, torch.sin(odd)


def make():
    return model, (torch.arange(6.0).view(2, 3),)
"""


@pytest.mark.parametrize(("wrong", "severity", "operation"), [(1, Severity.WRONG, "sin"), (0, Severity.LAYOUT, "cos")])
def test_a_graph_that_is_wrong_comes_before_one_with_other_strides(tmp_path, wrong, severity, operation):
    place = tmp_path / "odd.py"
    place.write_text(MODEL.replace("WRONG", str(wrong)))
    case, verdict = torchparity.find_failing(torchparity.Target(f"{place}:make"), backend="strides_and_values")
    assert (verdict.status, verdict.severity) == (Status.DIFFERS, severity)
    assert operation in case.graph


@pytest.mark.parametrize(
    ("left", "one", "share"), [(None, 5.0, None), (400.0, 0.0, 300.0), (400.0, 60.0, 180.0), (400.0, 300.0, 100.0)]
)
def test_a_budget_leaves_room_for_the_last_question_and_the_script(left, one, share):
    assert share_of(left, one) == share
