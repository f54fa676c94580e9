"""A recipe compiles, and prints what it does; the printed form, evaluated, does the same."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from torchparity import CaseError, Recipe, UsageError, torchapi
from torchparity.compilers.recipe import is_lost, registered_source, registering_import
from torchparity.repro.case import backend_files

EAGER_RANDOM = {"inductor.fallback_random": True, "dynamo.use_numpy_random_stream": True}

RECIPES = [
    Recipe(backend="eager"),
    Recipe(backend="aot_eager", dynamic=True),
    Recipe(backend="aot_eager", fullgraph=True, config={"dynamo.cache_size_limit": 3}),
    Recipe(backend="inductor", mode="default", config={"inductor.fallback_random": True}),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.backend)
def test_the_printed_form_does_the_same(recipe):
    model = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    with recipe.active():
        built = recipe.build(model)(x)
    saved = {key: current(key) for key in recipe.config}
    names = {"model": model}
    try:
        exec(recipe.to_source(), names)
        assert {key: current(key) for key in recipe.config} == dict(recipe.config)
        torch.compiler.reset()
        assert torch.equal(names["compiled"](x), built)
    finally:
        for key, value in saved.items():
            area, name = key.split(".", 1)
            setattr(torchapi.config_module(area), name, value)


def current(key):
    area, name = key.split(".", 1)
    return getattr(torchapi.config_module(area), name)


def test_settings_hold_only_inside():
    recipe = Recipe(config={"inductor.fallback_random": True})
    before = current("inductor.fallback_random")
    with recipe.active():
        assert current("inductor.fallback_random") is True
    assert current("inductor.fallback_random") is before


def test_eager_random_numbers_unless_the_user_said_otherwise():
    assert Recipe().with_eager_random().config == EAGER_RANDOM
    own = Recipe(config={"inductor.fallback_random": False})
    assert own.with_eager_random().config == {**EAGER_RANDOM, "inductor.fallback_random": False}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.backend)
def test_facts_are_plain_data(recipe):
    facts = recipe.validated().facts()
    assert facts["backend"] == recipe.backend
    assert facts["source"] == recipe.to_source()


def test_a_near_name_is_suggested():
    with pytest.raises(UsageError) as caught:
        Recipe(backend="aot_eagre").validated()
    assert "did you mean 'aot_eager'?" in caught.value.hint


class Registered:
    def __call__(self, graph_module, inputs, **options):
        return graph_module.forward


held_here = Registered()


def test_a_backend_that_is_an_object_is_found_in_the_module_that_holds_it():
    torch._dynamo.register_backend(held_here, name="held_object")
    torch._dynamo.register_backend(Registered(), name="lost_object")
    assert registering_import("held_object") == [f"import {__name__}"]
    assert (is_lost("held_object"), is_lost("lost_object")) == (False, True)
    assert not any(is_lost(name) for name in ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition"))
    with pytest.raises(CaseError, match="no module holds"):
        backend_files(Recipe(backend="lost_object"))


@pytest.mark.parametrize(
    "made",
    [lambda mine: aot_autograd(fw_compiler=mine), functools.partial, lambda mine: functools.partial(print, end=mine)],
    ids=["aot_autograd", "partial", "argument"],
)
def test_a_backend_that_no_module_holds_is_registered_by_the_module_of_what_it_was_made_of(backends, made):
    name = f"made_{id(made)}"
    torch._dynamo.register_backend(made(backends.doubling), name=name)
    assert registered_source(name) == (["import wrong_backends"], repr(name))
    assert not is_lost(name)


# Of backends that tests register.
ENDINGS = ("_function", "_object")


def test_a_backend_that_no_other_process_can_find_is_lost():
    text = {}
    exec("def nameless(graph_module, inputs): return graph_module.forward", text)
    torch._dynamo.register_backend(text["nameless"], name="nameless_function")
    assert is_lost("nameless_function")
    assert not any(
        is_lost(name) for name in torchapi.lookup("torch._dynamo.list_backends")(None) if not name.endswith(ENDINGS)
    )


def test_a_backend_registered_by_another_module_than_its_own_is_named_by_its_own(backends):
    """What torch's own factories make has a class of torch's, and is the user's all the same."""
    torch._dynamo.register_backend(backends.doubling, name="registered_elsewhere")
    torch._dynamo.register_backend(backends.wrong_sine, name="wrong_sine")

    assert registered_source("registered_elsewhere") == (["import wrong_backends"], "wrong_backends.doubling")
    assert registered_source("wrong_sine") == (["import wrong_backends"], "'wrong_sine'")
    assert not any(registered_source(name)[0] for name in ("inductor", "eager", "aot_eager", "cudagraphs"))


def test_what_a_dropout_is_given_is_not_padded_where_that_changes_its_mask(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    assert Recipe().with_eager_random().config == {**EAGER_RANDOM, "inductor.comprehensive_padding": False}
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    assert Recipe().with_eager_random().config == EAGER_RANDOM
