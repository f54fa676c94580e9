"""Every door to private torch opens on this version of torch, and a door that is not there says so."""

from __future__ import annotations

import pytest
import torch

from torchparity import TorchVersionError, torchapi


def test_a_missing_name_is_one_clear_error():
    with pytest.raises(TorchVersionError, match=r"has no `torch\._inductor\.no_such_thing`") as caught:
        torchapi.lookup("torch._inductor.no_such_thing")
    assert str(torch.__version__) in caught.value.message
    assert "2.11" in caught.value.hint


def test_backends():
    assert {"inductor", "eager", "aot_eager"} <= set(torchapi.list_backends())


@pytest.mark.parametrize("area", list(torchapi.CONFIG_MODULES))
def test_config_is_patched_and_put_back(area):
    module = torchapi.config_module(area)
    name = next(name for name, value in module.get_config_copy().items() if value is False)
    with torchapi.patched_config({f"{area}.{name}": True}):
        assert getattr(module, name) is True
    assert getattr(module, name) is False


def test_fresh_cache_is_a_context():
    with torchapi.fresh_compiler_cache():
        pass


def test_compile_failures_are_told_from_others():
    def backend(graph_module, inputs):
        raise RuntimeError("inside")

    torch.compiler.reset()
    with pytest.raises(Exception, match="inside") as caught:
        torch.compile(torch.sin, backend=backend)(torch.randn(2))
    assert torchapi.is_compile_failure(caught.value)
    assert str(torchapi.inner_failure(caught.value)) == "inside"
    assert not torchapi.is_compile_failure(RuntimeError("outside"))


def test_graphs_are_counted():
    torch.compiler.reset()
    before = torchapi.graphs_compiled()
    torch.compile(torch.sin, backend="eager")(torch.randn(2))
    assert torchapi.graphs_compiled() == before + 1


def test_aot_backend_sees_forward_and_backward():
    seen = []

    def compiler(name):
        def compile_graph(graph_module, inputs):
            seen.append((name, torchapi.mutated_inputs(), torchapi.visible_outputs(9)))
            return torchapi.boxed(graph_module.forward)

        return compile_graph

    def model(x, buffer):
        buffer.add_(1)
        return (x * 2).sum()

    torch.compiler.reset()
    backend = torchapi.aot_backend(forward=compiler("forward"), backward=compiler("backward"))
    torch.compile(model, backend=backend)(torch.randn(3, requires_grad=True), torch.zeros(2)).backward()
    assert [name for name, _, _ in seen] == ["forward", "backward"]
    assert len(seen[0][1]) == 1
    assert seen[0][2] == 2


def test_inductor_doors():
    settings = torchapi.dynamo_repro_settings()
    assert settings["repro_tolerance"] > 0


def test_onednn_is_turned_off_and_on_again():
    before = torch._C._get_mkldnn_enabled()
    with torchapi.without_onednn():
        assert not torch._C._get_mkldnn_enabled()
    assert torch._C._get_mkldnn_enabled() == before


def test_tensor_doors():
    base = torch.zeros(4)
    assert torchapi.storage_key(base) == torchapi.storage_key(base[1:])
    assert torchapi.storage_key(base) != torchapi.storage_key(base.clone())
    assert torchapi.storage_key(base.to_sparse()) is None
    assert torchapi.is_plain(torch.nn.Parameter(base))
    assert not torchapi.is_plain(base.to_sparse())
    assert torchapi.pytree_children([1, 2]) == [1, 2]
    assert torchapi.pytree_children(3) is None
    assert torchapi.tree_leaves({"a": [1, 2]}) == [1, 2]
    assert torchapi.tree_map(lambda value: value + 1, [1, 2]) == [2, 3]


def test_operator_doors():
    aten = torch.ops.aten
    assert torchapi.is_random(aten.bernoulli_.float)
    assert not torchapi.is_random(aten.add.Tensor)
    assert torchapi.written_arguments(aten.add_.Tensor) == (0,)
    assert torchapi.written_arguments(aten.add.out) == ("out",)
    assert torchapi.base_name(aten.add.Tensor) == "aten::add"
    assert callable(torchapi.higher_order_kernel(torch.ops.higher_order.cond))


def test_symbols_tell_their_value_and_how_they_are_written():
    seen = []

    def backend(graph_module, inputs):
        seen.extend(value for value in inputs if isinstance(value, torch.SymInt))
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)(torch.ones(5))
    assert torchapi.symbol_hint(seen[0]) == 5
    assert torchapi.symbol_expression(seen[0]).startswith("s")


def test_a_fake_tensor_has_no_values():
    assert torchapi.is_fake(torch.empty(2, device="meta"))
    assert not torchapi.is_fake(torch.empty(2))


def test_a_plain_copy_computes_the_same():
    graph_module = torch.fx.symbolic_trace(lambda x, y: (x + y, x * y))
    copied = torch.fx.GraphModule({}, torchapi.plain_copy(graph_module.graph))
    assert copied(torch.tensor(2.0), torch.tensor(3.0)) == (5.0, 6.0)


def test_the_end_of_a_graph_is_told_by_its_break():
    ends = []

    def backend(graph_module, inputs):
        ends.append(torchapi.end_of_graph(graph_module))
        return graph_module.forward

    def function(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    torch.compiler.reset()
    torch.compile(function, backend=backend)(torch.ones(2))
    assert ends[0] is not None
    assert "test_torchapi.py" in ends[0]["line"]
    assert ends[1] is None


def test_modes_are_left_outside():
    class Loud(torchapi.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError("seen")

    with Loud(), torchapi.no_dispatch_modes():
        assert (torch.ones(2) + 1).sum() == 4


def test_a_backend_is_found_by_name():
    assert callable(torchapi.backend_function("aot_eager"))


def test_a_custom_operator_tells_its_module():
    @torch.library.custom_op("torchparity_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torchapi.operator_module(torch.ops.torchparity_test.twice.default) == __name__
    assert torchapi.operator_module(torch.ops.aten.add.Tensor) is None
    assert torchapi.is_builtin_namespace("aten")
    assert not torchapi.is_builtin_namespace("torchparity_test")


def test_collectives_are_told_from_other_operators():
    assert torchapi.is_collective(torch.ops.c10d.allreduce_.default)
    assert torchapi.is_collective(torch.ops._c10d_functional.all_reduce.default)
    assert not torchapi.is_collective(torch.ops._c10d_functional.wait_tensor.default)
    assert not torchapi.is_collective(torch.ops.c10d.send.default)
    assert not torchapi.is_collective(torch.ops.aten.add.Tensor)
    torchapi.wait_for_collective([torch.ones(2)])


def test_what_is_not_sharded_is_its_own_part():
    tensor = torch.ones(2)
    assert torchapi.local_part(tensor) is tensor
    torchapi.shard_again(torch.nn.Linear(2, 2))


def test_a_store_keeps_what_is_set():
    store = torchapi.open_store("localhost", 0, serve=True, seconds=5, prefix="test")
    assert not store.check(["key"])
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize(("logs", "looks"), [(None, False), ("dynamo", True)])
def test_no_file_is_taken_apart_for_a_log_that_nobody_reads(monkeypatch, logs, looks):
    names = torchapi.lookup(torchapi.dynamo.FUNCTION_NAMES)
    take_apart, taken = names._add_file, []
    monkeypatch.setattr(names, "cache", {})
    monkeypatch.setattr(names, "_add_file", lambda path: (taken.append(path), take_apart(path)))
    monkeypatch.delenv("TORCH_LOGS", raising=False) if logs is None else monkeypatch.setenv("TORCH_LOGS", logs)
    torchapi.dynamo.forget_function_names()
    torch.compiler.reset()
    torch.compile(lambda x: torch.nn.functional.softplus(x), backend="eager")(torch.ones(2))
    assert (__file__ in taken) is looks
