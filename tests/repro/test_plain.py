"""The script of a small case: what it asserts holds where nothing is wrong, whatever the graph does."""

from __future__ import annotations

import pytest
import torch
from torch.fx import symbolic_trace

from torchparity import Recipe, torchapi
from torchparity.repro.plain import SEED, Plain, write_plain


def dropped(x):
    return torch.nn.functional.dropout(x, 0.5)


def drawn(x):
    return x + torch.rand_like(x)


def written(x):
    return x.bernoulli_(0.5)


def plain(function, *, recipe, kind="value", **more):
    graph_module = symbolic_trace(function)
    inputs = (torch.arange(64.0, requires_grad=bool(more.get("backward"))),)
    return Plain(graph_module=graph_module, inputs=inputs, recipe=recipe, kind=kind, environment={}, **more)


@pytest.mark.parametrize(
    ("function", "more"),
    [(dropped, {}), (dropped, {"backward": True}), (drawn, {}), (drawn, {"backward": True}), (written, {})],
)
def test_a_graph_that_draws_is_run_twice_with_the_same_numbers(function, more):
    text = write_plain(plain(function, recipe=Recipe(backend="eager"), **more))
    assert SEED in text
    assert "fallback_random = True" in text
    with torchapi.patched_config({"inductor.fallback_random": False}):  # The script sets it for good.
        exec(compile(text, "repro.py", "exec"), {})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin(),
        lambda x: torch.nn.functional.dropout(x, 0.5, False),
        lambda x: torch.nn.functional.dropout(x, training=False).add_(1),
        lambda x: torch.dropout(x, 0.5, train=False),
        lambda x: torch.ops.aten.dropout.default(x, 0.5, False),
    ],
)
def test_a_graph_that_draws_nothing_is_not_seeded(function):
    text = write_plain(plain(function, recipe=Recipe(backend="eager")))
    assert SEED not in text
    assert "fallback_random" not in text


def pair(x):
    return x.view(8, 8), x + 1


@pytest.mark.parametrize("function", [lambda x: x + 1, lambda x: x.t(), lambda x: x, pair, lambda x: x.add_(1)])
@pytest.mark.parametrize("kind", ["alias", "stride", "requires_grad"])
def test_a_fact_that_holds_for_both_is_no_difference(kind, function):
    text = write_plain(plain(function, recipe=Recipe(backend="eager"), kind=kind))
    exec(compile(text, "repro.py", "exec"), {})


def copies(graph_module, inputs):
    return lambda *args: [part.clone() for part in graph_module(*args)]


def turned(graph_module, inputs):
    return lambda *args: [part.t().contiguous().t() for part in graph_module(*args)]


@pytest.mark.parametrize(
    ("kind", "function", "backend"),
    [
        ("alias", lambda x: x.view(8, 8), copies),
        ("alias", pair, copies),
        ("stride", lambda x: x.view(8, 8) + 1, turned),
        ("stride", lambda x: (x.view(8, 8) + 1, x.view(4, 16) + 1), turned),
    ],
    ids=["alias", "alias of several", "stride", "stride of several"],
)
def test_a_fact_that_differs_is_asserted(kind, function, backend):
    text = write_plain(plain(function, recipe=Recipe(backend=backend), kind=kind))
    with pytest.raises(AssertionError):
        exec(compile(text, "repro.py", "exec"), {})
