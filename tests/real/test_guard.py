"""The guard before real backends: what it catches, what it writes, and that it stays out of the way."""

from __future__ import annotations

import copy
import os
import resource
import subprocess
import sys
import textwrap
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


def test_inductor_with_dropout_is_judged_and_passes(model, x, tmp_path):
    backend = guard("inductor", out=tmp_path)
    run(model, x, backend)
    assert [verdict.status for verdict in backend.verdicts] == [Status.SAME, Status.SAME]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_difference_raises_and_leaves_a_bundle_that_shows_it(model, x, tmp_path, where):
    backend = guard(plant("scale", where=where, site=2), out=tmp_path)
    with pytest.raises(AccuracyError, match="leaves differ") as caught:
        run(model, x, backend)
    assert caught.value.verdict.status is Status.DIFFERS
    case = read_bundle(backend.bundles[0])
    assert case.signature["kind"] == caught.value.verdict.kind
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
    assert read_bundle(backend.bundles[0]).signature["type"] == "RuntimeError"


def test_a_compiler_that_raises_leaves_a_bundle(model, x, tmp_path):
    backend = guard(plant("compile_raises"), out=tmp_path, level="graph")
    with pytest.warns(GuardWarning), pytest.raises(Exception, match="planted"):
        run(model, x, backend)
    assert read_bundle(backend.bundles[0]).signature["kind"] == "raises"


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
