"""Engines: what they refuse, what a deployed model gives back, and how they print themselves; no engine is needed."""

from __future__ import annotations

import ast
import dataclasses

import pytest
import torch

from torchparity import Recipe, UsageError
from torchparity.compilers import engines
from torchparity.compilers.candidates import Compiled
from torchparity.compilers.engines import ENGINES, Reporting, graph_backend
from torchparity.compilers.printed import trimmed
from torchparity.records import Kind
from torchparity.run.step import Plan, describe_failure
from torchparity.torchapi.compilers import NotDeployed
from torchparity.torchapi.deployed import Deployed


@dataclasses.dataclass
class Answer:
    value: torch.Tensor
    rows: int
    extra: torch.Tensor | None = None


def by_torch(program, options):
    """An engine that is torch itself; `options["seen"]` counts what it is given."""
    options.setdefault("seen", []).append(program)
    module = program.module()
    return lambda tensors: list(module(*tensors))


def without_packages(monkeypatch):
    monkeypatch.setattr(engines, "is_here", lambda name: False)


@pytest.mark.parametrize(("name", "extra"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_an_engine_that_is_not_installed_says_what_installs_it(name, extra, monkeypatch):
    without_packages(monkeypatch)
    with pytest.raises(UsageError, match=f"the engine {name} needs .*, not installed here") as caught:
        Recipe(backend=name).validated()
    assert caught.value.hint == f"pip install 'torchparity[{extra}]'"
    assert len(caught.value.message.splitlines()) == 1


def test_the_list_marks_what_is_missing(monkeypatch):
    without_packages(monkeypatch)
    lines = engines.engine_lines()
    assert [line.split()[0] for line in lines] == list(ENGINES)
    assert "not installed" not in lines[0]
    assert lines[1].endswith("(not installed: pip install 'torchparity[onnx]')")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"mode": "max-autotune"}, "has no mode"),
        ({"fullgraph": True}, "fullgraph means nothing"),
        ({"config": {"inductor.fallback_random": True}}, "does not obey"),
    ],
)
def test_what_means_nothing_is_refused(recipe, message, monkeypatch):
    monkeypatch.setattr(engines, "is_here", lambda name: True)
    with pytest.raises(UsageError, match=message) as caught:
        Recipe(backend="onnxruntime", **recipe).validated()
    assert caught.value.hint


def test_settings_of_an_engine_become_its_options(monkeypatch):
    monkeypatch.setattr(engines, "is_here", lambda name: True)
    recipe = Recipe(backend="openvino", config={"openvino.NUM_STREAMS": 2}).validated()
    assert (dict(recipe.options), dict(recipe.config)) == ({"NUM_STREAMS": 2}, {})
    assert "with_openvino, {'NUM_STREAMS': 2}" in recipe.to_source()


def test_a_near_name_is_suggested_for_engines_too():
    with pytest.raises(UsageError) as caught:
        Recipe(backend="onnxruntme").validated()
    assert "did you mean 'onnxruntime'?" in caught.value.hint


@pytest.mark.parametrize("plan", [Plan(training=True), Plan(backward=True)], ids=["training", "backward"])
@pytest.mark.parametrize("name", ENGINES)
def test_they_do_not_train(name, plan):
    with pytest.raises(UsageError, match=f"{name} runs models, it does not train them"):
        Recipe(backend=name).fitting(plan)
    assert Recipe(backend=name).fitting(Plan()).backend == name
    assert Recipe(backend="eager").fitting(plan).backend == "eager"


def test_a_graph_that_wants_gradients_is_refused():
    compile_graph = graph_backend("onnxruntime")
    with pytest.raises(UsageError, match="does not train"):
        compile_graph(torch.nn.Identity(), [torch.ones(2, requires_grad=True)])
    assert compile_graph.ignored == ENGINES["onnxruntime"].ignored
    assert graph_backend(by_torch) is by_torch


def test_strides_are_real_only_where_torch_wrote_the_code():
    assert Kind.STRIDE not in Recipe(backend="aot_inductor").ignored
    assert Kind.STRIDE in Recipe(backend="openvino").ignored
    assert Recipe(backend="inductor").ignored == frozenset()
    assert not Compiled(Recipe(backend="openvino")).traces
    assert Compiled(Recipe(backend="inductor")).traces


def test_random_numbers_are_no_setting_of_foreign_engines():
    assert Recipe(backend="onnxruntime").with_eager_random().config == {}
    assert Recipe(backend="aot_inductor").with_eager_random().config["inductor.fallback_random"]


def test_a_deployed_function_gives_back_what_it_gives():
    def model(x, *, scale, more):
        return {"answer": Answer(x * scale + more["y"], x.shape[0]), "pair": (x > 0, None), "word": "yes"}

    options = {}
    deployed = Deployed(model, by_torch, options)
    x, y = torch.randn(3, 4), torch.randn(4)
    expected, actual = model(x, scale=2, more={"y": y}), deployed(x, scale=2, more={"y": y})
    assert torch.equal(actual["answer"].value, expected["answer"].value)
    assert (actual["answer"].rows, actual["answer"].extra, actual["word"]) == (3, None, "yes")
    assert torch.equal(actual["pair"][0], expected["pair"][0])
    assert actual["pair"][1] is None
    deployed(x + 1, scale=2, more={"y": y})
    assert len(options["seen"]) == 1  # The same shapes: exported once.
    assert torch.equal(deployed(x, scale=3, more={"y": y})["answer"].value, x * 3 + y)
    deployed(torch.randn(5, 4), scale=3, more={"y": y})
    assert len(options["seen"]) == 3


def test_a_dynamic_export_serves_other_sizes():
    options = {}
    deployed = Deployed(lambda x: (x * 2, x.shape[0]), by_torch, options, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        doubled, count = deployed(x)
        assert torch.equal(doubled, x * 2)
        assert count == rows
    assert len(options["seen"]) == 1


def test_a_model_that_does_not_export_is_a_failure_to_compile():
    def model(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(NotDeployed) as caught:
        Reporting(model, by_torch, {})(torch.randn(3))
    failure = describe_failure(caught.value, "forward")
    assert failure.stage == "compile"
    assert failure.message.startswith("Could not guard on data-dependent expression")


def test_what_an_exporter_says_first_is_left_out():
    cause = RuntimeError("Check 'false' failed at file.cpp:1:\nSummary:\n-- No conversion rule found for aten.foo")
    error = ValueError("Failed to convert. This is step 3/3")
    error.__cause__ = cause
    assert str(NotDeployed(error)) == "-- No conversion rule found for aten.foo"


@pytest.mark.parametrize("name", ENGINES)
def test_the_printed_form_is_source_without_torchparity(name):
    source = Recipe(backend=name).to_source()
    assert "torchparity" not in source
    defined = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert defined == {f"with_{name}", "flatten", "Flat", "rebuild", "Deployed"}
    compile(ENGINES[name].plain_definitions, name, "exec")
    assert source.splitlines()[-1] == f"compiled = Deployed(model, with_{name}, {{}}, dynamic=False)"


def test_annotations_are_left_out_and_nothing_else():
    text = "def f(a: int, *b: str, c: bool = True, **d: dict[str, int]) -> list[int]:\n    x: int = 1  # one: two\n"
    assert trimmed(ast.parse(text)) == "def f(a, *b, c=True, **d):\n    x = 1"
