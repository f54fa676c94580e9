"""Exported models in real engines: clean ones are the same, wrong ones differ, and their bundles show it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from examples import my_backend

from torchparity import Recipe, Status, UsageError, blame, capture, check
from torchparity.judge.cases import judge_bundle
from torchparity.judge.script import write_bundle
from torchparity.minifier.searcher import plain_scripts
from torchparity.records.signature import Signature

ROOT = Path(__file__).parents[2]
# Where a CPU has 16-bit floats, OpenVINO uses them unless told otherwise.
OPTIONS = {"onnxruntime": {}, "openvino": {"INFERENCE_PRECISION_HINT": "f32"}, "aot_inductor": {}}
FOREIGN = ("onnxruntime", "openvino")


def mlp():
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)]
    return torch.nn.Sequential(*layers), (torch.randn(4, 16),), {}


def conv():
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten()), (torch.randn(2, 3, 16, 16),), {}


def bert():
    transformers = pytest.importorskip("transformers", reason="the extra hf installs transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=100, max_position_embeddings=32, **sizes))
    words = torch.randint(0, 100, (2, 10))
    return model, (), {"input_ids": words, "attention_mask": torch.ones_like(words)}


class Views(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x.t(), x, self.weight, x.view(-1), (x > 0).sum(), x.argmax(-1)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls.add_(1)
        return x + self.calls


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Large(torch.nn.Module):
    """OpenVINO's CPU plugin keeps 64-bit integers in 32 bits."""

    def forward(self, x):
        return (x + 1) * 3


def judged(model, args, kwargs=None, *, backend, **options):
    if backend in FOREIGN:
        pytest.importorskip(backend, reason="the extras onnx and openvino install the engines")
    return check(model, args, kwargs, backend=backend, options=OPTIONS[backend], **options)


SLOW = pytest.mark.slow
PAIRS = [
    (mlp, "onnxruntime"),
    pytest.param(bert, "onnxruntime", marks=SLOW),
    (conv, "openvino"),
    pytest.param(conv, "onnxruntime", marks=SLOW),
    pytest.param(mlp, "openvino", marks=SLOW),
    pytest.param(bert, "openvino", marks=SLOW),
]


@pytest.mark.parametrize(("make", "backend"), PAIRS)
def test_a_clean_model_is_the_same(make, backend):
    torch.manual_seed(0)
    model, args, kwargs = make()
    verdict = judged(model, args, kwargs, backend=backend)
    assert verdict.status is Status.SAME, verdict.reasons
    assert not any("nothing was compiled" in reason for reason in verdict.reasons)


@pytest.mark.slow
@pytest.mark.parametrize("make", [mlp, lambda: (Counting(), (torch.randn(2, 3),), {})], ids=["mlp", "counting"])
def test_aot_inductor_agrees_and_writes_to_buffers(make):
    model, args, _ = make()
    verdict = judged(model, args, backend="aot_inductor", input_sets=[args, args])
    assert verdict.status is Status.SAME, verdict.reasons


@pytest.mark.parametrize("backend", ["openvino", pytest.param("onnxruntime", marks=SLOW)])
def test_where_outputs_lie_in_memory_says_nothing(backend):
    assert judged(Views(), (torch.randn(4, 3),), backend=backend).status is Status.SAME


@pytest.mark.parametrize("backend", ["onnxruntime", pytest.param("openvino", marks=SLOW)])
def test_a_buffer_that_is_not_written_is_a_difference(backend):
    verdict = judged(Counting(), (torch.randn(4, 3),), backend=backend)
    assert (verdict.status, verdict.kind) == (Status.DIFFERS, "mutation")


def test_random_numbers_of_the_engines_own_are_unknown():
    assert judged(Noisy(), (torch.randn(4, 3),), backend="onnxruntime").status is Status.UNKNOWN


def test_an_operation_that_does_not_convert_is_an_exception_of_the_candidate():
    verdict = judged(torch.nn.AdaptiveMaxPool2d((2, 3)), (torch.randn(1, 2, 5, 7),), backend="onnxruntime")
    assert (verdict.status, verdict.kind) == (Status.DIFFERS, "raises")
    assert verdict.failure.stage == "compile"
    assert "adaptive_max_pool2d" in verdict.failure.message


def test_training_is_refused():
    model, args, _ = mlp()
    for job in (check, capture):
        with pytest.raises(UsageError, match="does not train"):
            job(model, args, backend="aot_inductor", train=True)


@pytest.mark.parametrize("backend", FOREIGN)
def test_the_printed_form_does_the_same(backend):
    pytest.importorskip(backend, reason="the extras onnx and openvino install the engines")
    model, args = torch.nn.Linear(3, 3), (torch.randn(2, 3),)
    recipe = Recipe(backend=backend, options=OPTIONS[backend]).validated()
    names = {"model": model}
    exec(recipe.to_source(), names)
    torch.testing.assert_close(names["compiled"](*args), model(*args))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    pytest.importorskip("openvino", reason="the extra openvino installs it")
    folder = tmp_path_factory.mktemp("large")
    case = capture(Large(), (torch.tensor([2**40, 5]),), backend="openvino", config={})[0]
    case = replace(case, request=replace(case.request, options=OPTIONS["openvino"]))
    return case, write_bundle(case, folder / "case")


def test_a_real_difference_is_found_in_a_bundle(large):
    verdict = judge_bundle(large[1])
    assert (verdict.status, verdict.kind) == (Status.DIFFERS, "integer")


def test_the_script_of_the_bundle_shows_it_without_torchparity(large):
    text = (large[1] / "repro.py").read_text(encoding="utf-8")
    assert "import torchparity" not in text
    assert "Needs torch and openvino." in text
    ended = subprocess.run([sys.executable, str(large[1] / "repro.py")], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "DIFFERS: 1 of" in ended.stdout


def test_the_plain_script_shows_it(large):
    signature = Signature(kind="integer", error="", frame="")
    text = next(iter(plain_scripts(large[0], signature, None)))
    assert text.startswith('"""openvino differs from eager in integer: add, mul')
    assert "torchparity" not in text.split('"""')[2]
    with pytest.raises(AssertionError, match="Tensor-likes are not equal"):
        exec(compile(text, "plain", "exec"), {"__name__": "plain"})


@pytest.mark.slow
def test_blame_ends_at_the_backend(large):
    found = blame(large[0])
    assert found.stage == "backend"
    assert found.passing is not None


@pytest.mark.slow
def test_the_difference_is_in_the_model_and_the_command_line_finds_it_in_the_bundle(large):
    verdict = judged(Large(), (torch.tensor([2**40, 5]),), backend="openvino")
    assert (verdict.status, verdict.kind) == (Status.DIFFERS, "integer")
    command = [sys.executable, "-m", "torchparity", "run", str(large[1])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "DIFFERS" in ended.stdout


def test_the_documented_backend_is_the_example_and_its_mistake_is_found():
    shown = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    assert (ROOT / "examples" / "my_backend.py").read_text(encoding="utf-8") in shown
    verdict = check(*my_backend.make(), backend="fast_gelu")
    assert (verdict.status, verdict.kind) == (Status.DIFFERS, "value")
