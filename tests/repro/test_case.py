from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import pytest
import torch
from tests.repro.graphs import case_of, doubling, graph_of, small_case

from torchparity.compilers.written import SourceBackend, request_from_json, request_to_json
from torchparity.errors import CaseError
from torchparity.repro.case import make_case, symbol_value, write_graph
from torchparity.repro.opening import open_case as load_case
from torchparity.repro.values import Literal, Symbol
from torchparity.request import Request


def test_the_same_case_has_the_same_digest():
    assert small_case().digest == small_case().digest
    assert len(small_case().digest) == 64


@pytest.mark.parametrize(
    "facts",
    [
        {"name": "other"},
        {"origin": {"graph": 7}},
        {"environment": {"torch": "9.9"}},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_name_origin_and_environment_are_no_part_of_the_digest(facts):
    assert small_case(**facts).digest == small_case().digest


def test_the_signature_is_no_part_of_the_digest():
    assert replace(small_case(), signature={"kind": "value"}).digest == small_case().digest


@pytest.mark.parametrize(
    "facts",
    [
        {"level": "aot"},
        {"direction": "forward"},
        {"request": Request(backend="inductor")},
        {"request": Request(backend="eager", dynamic=True)},
        {"request": Request(backend="eager", mode="default")},
        {"request": Request(backend="eager", fullgraph=True)},
        {"request": Request(backend="eager", options={"trace.enabled": True})},
        {"request": Request(backend="eager", config={"inductor.fallback_random": True})},
        {"request": Request(backend="eager", backward=True)},
        {"request": Request(backend="eager", autocast="bfloat16")},
        {"request": Request(backend="eager", tolerance=0.5)},
        {"random": {"cpu": torch.arange(5, dtype=torch.uint8)}},
    ],
    ids=repr,
)
def test_how_it_is_run_is_part_of_the_digest(facts):
    assert small_case(**facts).digest != small_case().digest


def test_one_random_state_is_not_another():
    states = [torch.arange(5, dtype=torch.uint8), torch.arange(1, 6, dtype=torch.uint8)]
    first, second = (small_case(random={"cpu": state}).digest for state in states)
    assert first != second


VALUES = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, 2.0, -3.0]),
        VALUES.double(),
        VALUES.view(torch.int32),
        VALUES.view(1, 3),
        torch.stack([VALUES, VALUES], 1)[:, 0],
        torch.cat([torch.zeros(1), VALUES])[1:],
        torch.cat([VALUES, torch.zeros(1)])[:3],
        VALUES.clone().requires_grad_(),
        torch.nn.Parameter(VALUES),
        torch.nn.Parameter(VALUES, requires_grad=False),
        torch._neg_view(VALUES),
        3.0,
        None,
    ],
    ids=[
        "value", "dtype", "bits", "shape", "stride", "offset", "storage", "grad", "parameter", "frozen", "negative",
        "number", "none",
    ],
)  # fmt: skip
def test_any_change_of_the_input_changes_the_digest(value):
    assert case_of(doubling(), [value]).digest != small_case().digest


def test_aliases_are_part_of_the_digest():
    graph = graph_of(lambda graph, x, y: (x, y), ["x", "y"])
    digests = {case_of(graph, inputs).digest for inputs in ([VALUES, VALUES], [VALUES, VALUES.clone()])}
    assert len(digests) == 2


def test_any_change_of_the_graph_changes_the_digest():
    tripling = graph_of(lambda graph, x: (graph.call_function(torch.mul, (x, 3)),), ["x"])
    assert case_of(tripling, [VALUES]).digest != small_case().digest


def test_a_constant_is_part_of_the_digest():
    def with_table(table):
        def build(graph, x):
            return (graph.call_function(torch.add, (x, graph.get_attr("table"))),)

        return case_of(graph_of(build, ["x"], table=table), [VALUES]).digest

    assert with_table(torch.zeros(3)) == with_table(torch.zeros(3))
    assert with_table(torch.zeros(3)) != with_table(torch.tensor([0.0, 0.0, -0.0]))


def test_files_are_part_of_the_digest():
    case = small_case()
    texts = [replace(case, files={"module.py": text}).digest for text in ("a = 1\n", "a = 2\n")]
    assert len({case.digest, *texts}) == 3


# --- recipes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        Request(),
        Request(backend="aot_eager", mode="default", dynamic=False, fullgraph=True, train=True, ignore=("stride",)),
        Request(
            options={"max_autotune": True}, config={"inductor.fallback_random": True, "dynamo.cache_size_limit": 3}
        ),
    ],
)
def test_a_request_survives_json(asked):
    assert request_from_json(request_to_json(asked)) == asked


def test_a_backend_that_is_not_a_name_is_kept_as_source_and_not_run():
    facts = request_to_json(Request(backend="eager"))
    facts["backend"] = {"imports": ["import nothing"], "expression": "nothing.at_all"}
    recipe = request_from_json(facts)
    assert recipe.backend == SourceBackend(("import nothing",), "nothing.at_all")
    assert request_to_json(recipe) == facts
    with pytest.raises(ModuleNotFoundError):
        recipe.backend.resolve()


@pytest.mark.parametrize(
    ("imports", "expression"),
    [
        (["raise SystemExit"], "nothing.at_all"),
        (["import os; os.system('true')"], "'eager'"),
        (["import os"], "os.system('true')"),
        (["import os"], "(lambda: 1)()"),
        ([], "__import__('os').system('true')"),
        ([], "[1]"),
        (["import torchparity.faults"], "torchparity.faults.plant(__import__('os'))"),
        (["import os\nraise SystemExit"], "os.path"),
    ],
)
def test_a_backend_is_names_and_nothing_that_is_evaluated(imports, expression):
    facts = request_to_json(Request(backend="eager"))
    facts["backend"] = {"imports": imports, "expression": expression}
    with pytest.raises((ValueError, SyntaxError)):
        request_from_json(facts)


def test_a_name_that_an_import_registers_is_read_without_it():
    facts = request_to_json(Request(backend="eager"))
    facts["backend"] = {"imports": ["import not_installed_here"], "expression": "'not_installed_here'"}
    assert request_to_json(request_from_json(facts)) == facts


def local_backend():
    def backend(graph_module, inputs):
        return graph_module

    return backend


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(backend=local_backend()), "is not importable, so no other process can run it"),
        (Request(options={"post_grad_custom_pre_pass": print}), "post_grad_custom_pre_pass is a builtin_function"),
        (Request(config={"inductor.something": float("nan")}), "inductor.something is a float"),
    ],
)
def test_a_recipe_that_no_other_process_can_have_is_refused(request_, message):
    with pytest.raises(CaseError) as caught:
        small_case(request=request_)
    assert message in caught.value.message
    assert caught.value.hint


def test_random_operations_ask_for_eagers_random_numbers():
    dropout = graph_of(lambda graph, x: (graph.call_function(torch.nn.functional.dropout, (x,)),), ["x"])
    assert case_of(dropout, [VALUES]).recipe.config == {"inductor.fallback_random": True}
    assert small_case().recipe.config == {}


# --- inputs --------------------------------------------------------------------------------------


def test_a_missing_input_is_refused():
    with pytest.raises(CaseError, match="the graph takes 1 inputs and 2 were given"):
        make_case(
            write_graph(doubling(), [VALUES]),
            [VALUES, VALUES],
            name="x",
            level="aot",
            direction="both",
            request=Request(),
        )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("12", Literal(text="12")),
        ("s1", Symbol(value=12, expression="x.shape[0]")),
        ("s1*s2 + 1", Symbol(value=12, expression="x.shape[0] * y.shape[2] + 1")),
        ("s1**2", Symbol(value=12, expression="x.shape[0] ** 2")),
        ("s9", Symbol(value=12)),
        ("Max(s1, s2)", Symbol(value=12)),
    ],
)
def test_a_symbol_is_told_by_the_sizes_of_tensors_where_it_can_be(written, expected):
    assert symbol_value(12, written, {"s1": "x.shape[0]", "s2": "y.shape[2]"}) == expected


SUBCLASS = """
import torch


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, factor):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner, made.factor = inner, factor
        return made

    def __tensor_flatten__(self):
        return ["inner"], self.factor

    @staticmethod
    def __tensor_unflatten__(parts, factor, shape, stride):
        return Scaled(parts["inner"], factor)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented
"""


def test_the_class_of_a_tensor_travels_with_its_file(tmp_path, monkeypatch):
    (tmp_path / "case_test_subclass.py").write_text(SUBCLASS)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("case_test_subclass")
    case = case_of(graph_of(lambda graph, x: (x,), ["x"]), [module.Scaled(VALUES, 0.5)])
    del sys.modules["case_test_subclass"], sys.path[0]
    assert dict(case.files) == {"case_test_subclass.py": SUBCLASS}
    (rebuilt,) = load_case(case).make()[1]
    assert type(rebuilt).__name__ == "Scaled"
    assert rebuilt.factor == 0.5
    assert torch.equal(rebuilt.inner, VALUES)
    del sys.modules["case_test_subclass"]
