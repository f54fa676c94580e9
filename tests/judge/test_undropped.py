"""A backend that draws other random numbers than eager: what can be told of it while nothing is dropped."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from torchparity import Status, check
from torchparity.run.subject import Subject
from torchparity.run.undropped import dropouts_of, without_dropout


class Attention(torch.nn.Module):
    """As many models have it: one dropout is a module, the other a number."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.attention_dropout = 0.2
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        dropped = self.attention_dropout if self.training else 0.0
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropped)
        return self.dropout(self.out(torch.tanh(mixed)))


def drawing_others(wrong: float):
    """A backend whose random numbers come later in the stream; `wrong` scales what tanh gives."""

    def compile_graph(graph, inputs):
        if wrong != 1.0:
            for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
                with graph.graph.inserting_after(node):
                    scaled = graph.graph.call_function(torch.ops.aten.mul.Tensor, (node, wrong))
                node.replace_all_uses_with(scaled, delete_user_cb=lambda user, scaled=scaled: user is not scaled)
            graph.recompile()

        def run(args):
            torch.rand(3)
            return graph(*args)

        run._boxed_call = True
        return run if inputs else make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=compile_graph)


def judged(wrong: float, **options):
    torch.manual_seed(0)
    model = Attention()
    before = [(name, value) for _, name, value in dropouts_of(Subject(model))]
    verdict = check(model, (torch.randn(2, 8, 16),), backend=drawing_others(wrong), **options)
    assert [(name, value) for _, name, value in dropouts_of(Subject(model))] == before
    return verdict


def test_what_agrees_without_dropout_is_unknown_and_said_so():
    verdict = judged(1.0, train=True)
    assert verdict.status is Status.UNKNOWN
    assert any("does not draw eager's random numbers" in reason for reason in verdict.reasons)
    assert any("with every dropout turned off all" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("wrong", [1.001, pytest.param(1.1, marks=pytest.mark.slow)])
def test_what_differs_without_dropout_differs(wrong):
    verdict = judged(wrong, train=True)
    assert verdict.status is Status.DIFFERS
    assert verdict.reasons[0].startswith("with every dropout turned off")
    assert verdict.kind == "value"


def test_where_nothing_is_dropped_it_is_not_asked():
    assert judged(1.0).status is Status.SAME
    names = [run.name for run in judged(1.0, train=True).runs]
    assert names.count("eager") == 2


def test_every_way_to_name_a_probability_is_found_and_put_back():
    model = torch.nn.ModuleDict(
        {"a": torch.nn.Dropout2d(0.3), "b": torch.nn.MultiheadAttention(4, 2, dropout=0.25), "c": torch.nn.LSTM(2, 2)}
    )
    model.layerdrop, model.drop_path_rate, model.dropped, model.backdrop = 0.5, 0.125, 3, "text"
    subject = Subject(model)
    found = {(type(module).__name__, name): value for module, name, value in dropouts_of(subject)}
    assert sorted(found.values()) == [0.125, 0.25, 0.3, 0.5]
    with pytest.raises(ValueError), without_dropout(subject, 0):
        assert dropouts_of(subject) == []
        raise ValueError
    assert len(dropouts_of(subject)) == 4
