from __future__ import annotations

import importlib
import math
import operator
import sys

import pytest
import torch
from tests.repro.graphs import graph_of
from torch.fx import Graph, GraphModule

from torchparity.errors import CaseError
from torchparity.repro import reading
from torchparity.repro.names import operations
from torchparity.repro.source import _inspect_argument, write_graph


def made(source):
    names = {"torch": torch, "attach": reading.attach}
    exec(source.text(), names)
    model = names["Graph"]()
    for path, value in source.constants.items():
        reading.attach(model, path, value)
    return reading.as_graphs(model)


def test_source_computes_what_the_graph_computes():
    def build(graph, x):
        total = graph.call_function(torch.add, (x, 0.1), {"alpha": 3})
        return (graph.call_method("clamp", (total,), {"max": math.inf}), graph.call_function(torch.sum, (total, (0,))))

    graph = graph_of(build, ["x"])
    source = write_graph(graph)
    x = torch.randn(4)
    assert all(torch.equal(a, b) for a, b in zip(made(source)(x), graph(x), strict=True))
    assert source.imports == {"from math import inf"}
    assert source.compute_nodes == 3
    assert not source.draws_random_numbers


def test_source_without_imports_begins_with_its_class():
    assert write_graph(graph_of(lambda graph, x: (x,), ["x"])).text().startswith("class Graph(torch.nn.Module):\n")


def test_constants_are_named_by_their_path():
    table = torch.randn(3)
    graph = graph_of(
        lambda graph, x: (graph.call_function(torch.add, (x, graph.get_attr("table"))),), ["x"], table=table
    )
    source = write_graph(graph)
    assert source.constants == {"table": table}
    assert torch.equal(made(source)(torch.ones(3))[0], table + 1)


def test_bodies_become_classes_with_their_own_constants():
    def body(number):
        held = torch.tensor([float(number)])
        return graph_of(
            lambda graph, x: (graph.call_function(torch.add, (x, graph.get_attr("held"))),), ["x"], held=held
        )

    def build(graph, flag, x):
        chosen = (flag, graph.get_attr("yes"), graph.get_attr("no"), (x,))
        return (graph.call_function(torch.ops.higher_order.cond, chosen),)

    graph = graph_of(build, ["flag", "x"], yes=body(1), no=body(2))
    source = write_graph(graph)
    assert [line for text in source.classes for line in text.splitlines() if line.startswith("class")] == [
        "class Graph_no(torch.nn.Module):",
        "class Graph_yes(torch.nn.Module):",
        "class Graph(torch.nn.Module):",
    ]
    assert sorted(source.constants) == ["no.held", "yes.held"]
    for flag, expected in ((True, 1.0), (False, 2.0)):
        assert made(source)(torch.tensor(flag), torch.zeros(1))[0][0].item() == expected


def test_a_slice_with_a_computed_end_is_written():
    def build(graph, x, size):
        return (graph.call_function(operator.getitem, (x, slice(None, size, None))),)

    assert torch.equal(made(write_graph(graph_of(build, ["x", "size"])))(torch.arange(5), 2)[0], torch.arange(2))


@pytest.mark.parametrize("target", [torch.nn.functional.dropout, torch.ops.aten.bernoulli.default, torch.randn_like])
def test_random_operations_are_noticed(target):
    assert write_graph(graph_of(lambda graph, x: (graph.call_function(target, (x,)),), ["x"])).draws_random_numbers


# --- modules of the user's -----------------------------------------------------------------------

OPERATOR = """
import torch
import source_test_numbers


@torch.library.custom_op("{name}::bent", mutates_args=())
def bent(x: torch.Tensor) -> torch.Tensor:
    return x * source_test_numbers.FACTOR
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Write modules of the user's and import the last one; they are forgotten afterwards."""
    names = []

    def write(**texts):
        monkeypatch.syspath_prepend(str(tmp_path))
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            names.append(name)
        return importlib.import_module(names[-1])

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_custom_operator_brings_its_module_and_what_that_imports(user_module):
    module = user_module(
        source_test_numbers="FACTOR = 3.0\n", source_test_operators=OPERATOR.format(name="source_test_operators")
    )
    operator = torch.ops.source_test_operators.bent.default
    source = write_graph(graph_of(lambda graph, x: (graph.call_function(operator, (x,)),), ["x"]))
    assert source.imports == {"import source_test_operators"}
    assert sorted(source.files) == ["source_test_numbers.py", "source_test_operators.py"]
    assert module.bent(torch.ones(1)) == 3.0


def call(target, *extra, **keywords):
    return graph_of(lambda graph, x: (graph.call_function(target, (x, *extra), keywords),), ["x"])


def refused(graph_module):
    with pytest.raises(CaseError) as caught:
        write_graph(graph_module)
    assert caught.value.hint
    return caught.value.message


def test_a_function_of_the_users_is_imported(user_module):
    module = user_module(source_test_plain="def half(x):\n    return x / 2\n")
    source = write_graph(call(module.half))
    assert source.imports == {"from source_test_plain import half as source_test_plain_half"}
    assert list(source.files) == ["source_test_plain.py"]


def test_a_function_inside_a_function_is_refused():
    def local(x):
        return x

    message = refused(call(local))
    assert message.startswith("the graph uses test_a_function_inside_a_function_is_refused.<locals>.local")
    assert message.endswith("which has no name to import it by")


def test_a_function_of_the_main_program_is_refused():
    def local(x):
        return x

    local.__module__, local.__qualname__, local.__name__ = "__main__", "main_function", "main_function"
    assert refused(call(local)) == "main_function is defined in __main__, which another process cannot import"


def test_a_function_in_a_package_of_the_users_is_refused(tmp_path, monkeypatch):
    (tmp_path / "source_test_package").mkdir()
    (tmp_path / "source_test_package" / "__init__.py").write_text("def half(x):\n    return x / 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("source_test_package")
    try:
        assert "is defined in source_test_package, which another process cannot import" in refused(call(module.half))
    finally:
        sys.modules.pop("source_test_package")


def test_a_module_called_as_the_script_is_refused(user_module):
    module = user_module(repro="def half(x):\n    return x / 2\n")
    assert refused(call(module.half)) == "half is defined in repro.py, as the script of a bundle is called"


def test_a_file_in_another_encoding_is_refused(user_module, tmp_path):
    module = user_module(source_test_latin="def half(x):\n    return x / 2\n")
    (tmp_path / "source_test_latin.py").write_bytes(b"# coding: latin-1\n# \xe9\ndef half(x):\n    return x / 2\n")
    assert refused(call(module.half)) == "source_test_latin.py is not written in UTF-8"


def test_a_call_of_a_module_is_refused():
    graph = Graph()
    x = graph.placeholder("x")
    root = torch.nn.Module()
    root.layer = torch.nn.Linear(2, 2)
    graph.output((graph.call_module("layer", (x,)),))
    assert refused(GraphModule(root, graph)) == (
        "the graph calls the module layer, whose code is not part of the graph"
    )


def test_an_attribute_that_is_no_tensor_is_refused():
    graph = graph_of(lambda graph, x: (x,), ["x"])
    graph.number = 3
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        graph.graph.get_attr("number")
    assert refused(graph) == "the graph uses number, a int, which cannot be written down"


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.tensor(1.0)], ids=lambda value: type(value).__name__)
def test_an_argument_without_a_source_form_is_refused(value):
    graph = call(torch.add)
    node = next(node for node in graph.graph.nodes if node.op == "call_function")
    with pytest.raises(CaseError) as caught:
        _inspect_argument(node, value)
    assert caught.value.message == f"{node.name} takes a {type(value).__name__}, which source cannot say"


def test_a_triton_kernel_known_by_its_number_is_refused():
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    graph = graph_of(
        lambda graph, x: (graph.call_function(triton_kernel_wrapper_mutation, (), {"kernel_idx": 0, "x": x}),), ["x"]
    )
    assert refused(graph) == (
        "triton_kernel_wrapper_mutation runs a Triton kernel of the user's, known to this process only by its number"
    )


def test_an_operator_that_nobody_owns_is_refused():
    library = torch.library.Library("source_test_nobody", "DEF")
    library.define("lost(Tensor x) -> Tensor")
    assert refused(call(torch.ops.source_test_nobody.lost.default)) == (
        "the custom operator source_test_nobody::lost does not tell which module registers it"
    )
    library._destroy()


def test_a_graph_read_back_has_the_operations_it_had():
    def build(graph, x):
        steps = graph.call_function(torch.arange, (3,), {"device": torch.device("cpu")})
        return (graph.call_function(torch.add, (x, steps)),)

    graph_module = graph_of(build, ["x"])
    holder = torch.nn.Module()
    holder.model = made(write_graph(graph_module))
    traced = reading.as_graphs(holder).model
    assert [node.target for node in operations(traced)] == [node.target for node in operations(graph_module)]


def test_values_written_in_place_are_written_in_place_again():
    def build(graph, x):
        graph.call_function(operator.setitem, (x, 0, 5.0))
        total = graph.call_function(operator.iadd, (x, 1))
        return (graph.call_function(operator.imul, (total, 2)),)

    graph_module = graph_of(build, ["x"])
    holder = torch.nn.Module()
    holder.model = made(write_graph(graph_module))
    traced = reading.as_graphs(holder).model
    assert [node.target for node in operations(traced)] == [operator.setitem, operator.iadd, operator.imul]
    given = torch.zeros(3)
    assert torch.equal(traced(given)[0], torch.tensor([12.0, 2.0, 2.0]))
    assert torch.equal(given, torch.tensor([12.0, 2.0, 2.0]))
