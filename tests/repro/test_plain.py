"""The script of a small case: what it asserts holds where nothing is wrong, whatever the graph does."""

from __future__ import annotations

import pytest
import torch
from torch.fx import symbolic_trace

from torchparity import Recipe, torchapi
from torchparity.repro.plain import SEED, Plain, input_source, input_sources, write_plain


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


WHOLE = torch.arange(12.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE, WHOLE),
        (WHOLE.view(3, 4), WHOLE),
        (WHOLE.view(3, 4), WHOLE.view(3, 4)[1:, ::2]),
        (WHOLE[4:], WHOLE[6:8]),
        (WHOLE.view(3, 4), WHOLE.view(3, 4).t()),
    ],
)
def test_inputs_that_share_memory_share_it_in_the_script(first, second):
    sources = input_sources([first, second], ["x", "y"])
    made = {"torch": torch}
    for name, source in zip("xy", sources, strict=True):
        exec(f"{name} = {source}", made)
    x, y = made["x"], made["y"]
    assert (x.shape, y.shape, y.stride()) == (first.shape, second.shape, second.stride())
    assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert y.storage_offset() - x.storage_offset() == second.storage_offset() - first.storage_offset()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE[4:], WHOLE[2:6]),
        (WHOLE[:4], WHOLE[2:6]),
        (WHOLE, WHOLE.view(torch.int32)),
        (WHOLE, WHOLE + 1),
        (WHOLE, 3),
    ],
)
def test_what_does_not_lie_in_an_earlier_input_is_made_by_itself(first, second):
    assert input_sources([first, second], ["x", "y"]) == [input_source(first), input_source(second)]
