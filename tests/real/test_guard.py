"""The guard before real backends: what it catches, what it writes, and that it stays out of the way."""

from __future__ import annotations

import copy
import os
import resource
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import torch

import torchparity
from torchparity import AccuracyError, GuardWarning, Status, UsageError, guard, read_bundle
from torchparity.faults import plant


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        torch._dynamo.graph_break()
        return self.first(x).softmax(-1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield Model().train()
    torch.compiler.reset()


@pytest.fixture
def x():
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def run(model, x, backend):
    torch.manual_seed(3)
    outputs = torch.compile(model, backend=backend)(x)
    outputs.sum().backward()
    return outputs


def test_a_right_backend_passes_and_nothing_is_written(model, x, tmp_path):
    backend = guard("aot_eager", out=tmp_path)
    expected = copy.deepcopy(model)
    outputs = run(model, x, backend)
    torch.manual_seed(3)
    assert torch.equal(outputs, expected(x))
    assert model.norm.num_batches_tracked == 1
    assert [verdict.status for verdict in backend.verdicts] == [Status.SAME, Status.SAME]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_inductor_with_dropout_is_judged_and_passes(model, x, tmp_path):
    backend = guard("inductor", out=tmp_path)
    run(model, x, backend)
    assert [verdict.status for verdict in backend.verdicts] == [Status.SAME, Status.SAME]


@pytest.mark.parametrize("where", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_a_difference_raises_and_leaves_a_bundle_that_shows_it(model, x, tmp_path, where):
    backend = guard(plant("scale", where=where, site=2), out=tmp_path)
    with pytest.raises(AccuracyError, match="leaves differ") as caught:
        run(model, x, backend)
    assert caught.value.verdict.status is Status.DIFFERS
    case = read_bundle(backend.bundles[0])
    assert case.signature.kind == caught.value.verdict.kind
    assert str(backend.bundles[0]) in caught.value.hint
    again = torchparity.run_bundle(backend.bundles[0])
    assert again.status is Status.DIFFERS
    assert again.kind == caught.value.verdict.kind


def test_on_difference_eager_goes_on_with_eager(model, x, tmp_path):
    backend = guard(plant("scale", site=2), out=tmp_path, on_difference="eager")
    expected = copy.deepcopy(model)
    with pytest.warns(GuardWarning, match="going on with eager"):
        outputs = run(model, x, backend)
    torch.manual_seed(3)
    assert torch.equal(outputs, expected(x))
    assert len(backend.bundles) == 1


def test_only_the_first_call_is_judged(x, tmp_path):
    torch.compiler.reset()
    backend = guard("aot_eager", out=tmp_path)
    compiled = torch.compile(lambda value: value * 2 + 1, backend=backend)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 2 + 1)
    assert len(backend.verdicts) == 1


@pytest.mark.parametrize("level", ["graph", "launcher"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_backend_that_raises_leaves_a_bundle(model, x, tmp_path, level, where):
    backend = guard(plant("raises", where=where, site=1), out=tmp_path, level=level)
    advice = "torchparity minify" if level == "launcher" else "fails with RuntimeError"
    with pytest.warns(GuardWarning, match=advice), pytest.raises(RuntimeError):
        run(model, x, backend)
    assert read_bundle(backend.bundles[0]).signature.error == "RuntimeError"


def test_a_compiler_that_raises_leaves_a_bundle(model, x, tmp_path):
    backend = guard(plant("compile_raises"), out=tmp_path, level="graph")
    with pytest.warns(GuardWarning), pytest.raises(Exception, match="planted"):
        run(model, x, backend)
    assert read_bundle(backend.bundles[0]).signature.kind == "raises"


def test_a_segfault_leaves_the_bundle_behind(tmp_path):
    script = textwrap.dedent(
        """
        import torch
        from torchparity.faults import plant
        import torchparity
        model = torch.nn.Linear(4, 4)
        backend = torchparity.guard(plant("segfault"), level="always", out="runs")
        torch.compile(model, backend=backend)(torch.ones(2, 4))
        """
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, timeout=300)
    assert ended.returncode < 0
    (bundle,) = tmp_path.glob("runs/*/*")
    assert read_bundle(bundle).compute_nodes == 1
    verdict = torchparity.run_bundle(bundle)
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == "crashes"


def test_the_environment_sets_a_program_that_need_not_change(tmp_path):
    script = "import torch; torch.compile(torch.nn.Linear(4, 4), backend='torchparity')(torch.ones(2, 4))"
    settings = {"TORCHPARITY_BACKEND": "aot_eager", "TORCHPARITY_LEVEL": "always", "TORCHPARITY_OUT": "found"}
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, **settings}, check=True, timeout=300
    )
    (bundle,) = tmp_path.glob("found/*/*")
    assert read_bundle(bundle).recipe.backend == "aot_eager"


def test_a_folder_without_permission_costs_a_warning(model, x, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")  # Root may write anywhere; nobody can make a folder inside a file.
    backend = guard("aot_eager", level="always", out=blocked)
    with pytest.warns(GuardWarning, match="the graph and its inputs are lost"):
        outputs = run(model, x, backend)
    assert outputs.shape == (16, 8)


def test_a_full_disk_costs_a_warning_and_leaves_nothing_half_written(tmp_path):
    script = textwrap.dedent(
        """
        import resource, signal, warnings, torch, torchparity
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        model = torch.nn.Linear(512, 512)
        backend = torchparity.guard("eager", level="always", out="runs")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            outputs = torch.compile(model, backend=backend)(torch.ones(2, 512))
        assert outputs.shape == (2, 512)
        assert any("are lost" in str(entry.message) for entry in caught), caught
        """
    )
    assert resource.RLIMIT_FSIZE  # Linux: a file that may not grow is what a full disk looks like.
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=300)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_bad_settings_are_refused():
    with pytest.raises(UsageError, match="no guard level 'acuracy'") as caught:
        guard(level="acuracy")
    assert "did you mean 'accuracy'" in caught.value.hint
    with pytest.raises(UsageError, match="on_difference"):
        guard(on_difference="ignore")
    with pytest.raises(UsageError, match="cannot guard itself"):
        guard("torchparity")
    with pytest.raises(UsageError, match="backend named 'inducktor'"):
        guard("inducktor")


def test_what_cannot_be_written_is_said_and_the_program_goes_on(x, tmp_path):
    torch.compiler.reset()

    def local_backend(graph_module, inputs):
        return graph_module.forward

    backend = guard(local_backend, level="always", out=tmp_path)
    with pytest.warns(GuardWarning, match="not importable"):
        assert torch.equal(torch.compile(torch.sin, backend=backend)(x), torch.sin(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.compile(torch.sin, backend=backend)(x), torch.sin(x))


def test_mode_and_options_reach_the_compiler(x, tmp_path):
    torch.compiler.reset()
    seen = []

    def compiler(graph_module, inputs, **given):
        seen.append(given)
        return graph_module.forward

    for given in ({"mode": "reduce-overhead"}, {"options": {"some": 1}}, {}):
        torch.compiler.reset()
        torch.compile(lambda value: value * 2, backend=guard(compiler, out=tmp_path), **given)(x)
    assert seen == [{"mode": "reduce-overhead"}, {"options": {"some": 1}}, {}]


@pytest.mark.parametrize("given", [{"mode": "reduce-overhead"}, {"options": {"epilogue_fusion": False}}])
def test_mode_and_options_are_those_of_inductor_and_are_written_down(x, tmp_path, given):
    torch.compiler.reset()
    backend = guard("inductor", level="always", out=tmp_path)
    torch.compile(lambda value: value * 2 + 1, backend=backend, **given)(x)
    recipe = read_bundle(backend.bundles[0]).recipe
    assert recipe.mode == given.get("mode")
    assert dict(recipe.options) == given.get("options", {})


def test_the_settings_of_a_guard_hold_while_it_compiles(x, tmp_path):
    torch.compiler.reset()
    seen = []

    def compiler(graph_module, inputs):
        seen.append(torch._inductor.config.fallback_random)
        return graph_module.forward

    backend = guard(compiler, out=tmp_path, config={"inductor.fallback_random": True})
    torch.compile(lambda value: value * 2, backend=backend)(x)
    assert seen == [True]
    assert not torch._inductor.config.fallback_random


@pytest.mark.parametrize("settings", [{}, {"level": "graph"}, {"on_difference": "eager"}])
def test_a_compiled_optimizer_takes_one_step_and_not_more(x, tmp_path, settings):
    def step(backend):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        model(x).square().sum().backward()
        torch.compile(optimizer.step, backend=backend)()
        return [model.weight.detach(), model.weight.grad, *optimizer.state[model.weight].values()]

    expected = step("aot_eager")
    assert all(map(torch.equal, step(guard("aot_eager", out=tmp_path, **settings)), expected))


def test_going_on_with_eager_steps_the_users_own_parameters(x, tmp_path):
    torch.compiler.reset()
    model = torch.nn.Linear(8, 4)
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).square().sum().backward()
    backend = guard(plant("scale_percent", site=1), out=tmp_path, on_difference="eager")
    with pytest.warns(GuardWarning, match="going on with eager"):
        torch.compile(optimizer.step, backend=backend)()
    assert optimizer.state[model.weight]["step"] == 1
    assert not torch.equal(model.weight, before)


def test_a_gradient_inside_the_graph_is_judged_with_gradients_on(x, tmp_path):
    torch.compiler.reset()
    backend = guard("aot_eager", out=tmp_path)
    slope = torch.compile(lambda value: torch.func.grad(lambda inner: inner.square().sum())(value), backend=backend)
    assert torch.equal(slope(x), 2 * x)
    assert [verdict.status for verdict in backend.verdicts] == [Status.SAME]


def test_threads_leave_the_compiler_as_it_was(tmp_path):
    torch.compiler.reset()
    compiled = torch.compile(lambda value: value * 2, backend=guard("aot_eager", out=tmp_path), dynamic=False)
    threads = [threading.Thread(target=compiled, args=(torch.ones(size),)) for size in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.compiler.reset()
    backend = guard("aot_eager", out=tmp_path)
    torch.compile(lambda value: value * 3, backend=backend)(torch.ones(2))
    assert len(backend.verdicts) == 1


def test_two_guards_of_one_second_do_not_write_over_each_other(x, tmp_path):
    bundles = []
    for factor in (2, 3):
        torch.compiler.reset()
        backend = guard("aot_eager", level="always", out=tmp_path)
        torch.compile(lambda value, factor=factor: value * factor, backend=backend)(x)
        bundles += backend.bundles
    assert read_bundle(bundles[0]).digest != read_bundle(bundles[1]).digest
