"""Cases from the command line: capture, show, run, the script itself, and a check in another process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from warm import command_line as torchparity

MODEL = """
import ctypes
import torch

def make():
    return torch.nn.Linear(4, 4), (torch.randn(2, 4),)

@torch._dynamo.register_backend(name="one_percent_off")
def one_percent_off(graph_module, inputs):
    return lambda *args: tuple(value * 1.01 for value in graph_module(*args))

@torch._dynamo.register_backend(name="dies")
def dies(graph_module, inputs):
    return lambda *args: ctypes.string_at(0)

def nested():
    return (lambda x: x.values().sum()), (torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cases")
    (path / "my_model.py").write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def captured(folder):
    ended = torchparity(folder, "capture", "my_model.py:make", "--backend", "one_percent_off", "--out", "cases")
    assert ended.returncode == 0, ended.stderr
    assert "cases/001_dynamo" in ended.stdout
    assert "cases/002_forward_aot" in ended.stdout
    return folder / "cases" / "001_dynamo"


def test_show_tells_what_is_in_it_and_runs_nothing(folder, captured):
    ended = torchparity(folder, "show", str(captured))
    assert ended.returncode == 0
    assert "float32[2, 4]" in ended.stdout
    assert "one_percent_off" in ended.stdout
    assert "the files are as they were written" in ended.stdout


def test_run_says_that_it_differs_and_how_often(folder, captured):
    ended = torchparity(folder, "run", str(captured), "--times", "2")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("DIFFERS  001_dynamo against one_percent_off")
    assert "reproduced 2 of 2" in ended.stdout


def test_the_script_says_so_too(folder, captured, tmp_path):
    ended = subprocess.run([sys.executable, captured / "repro.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "DIFFERS: 1 of" in ended.stdout


@pytest.mark.parametrize("damage", ["truncated", "edited", "absent"])
def test_a_damaged_bundle_is_two_lines(folder, captured, tmp_path, damage):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for path in captured.iterdir():
        (bundle / path.name).write_bytes(path.read_bytes())
    if damage == "truncated":
        (bundle / "tensors.safetensors").write_bytes((bundle / "tensors.safetensors").read_bytes()[:-3])
    elif damage == "edited":
        (bundle / "case.json").write_text((bundle / "case.json").read_text().replace("one_percent", "two_percent"))
    else:
        (bundle / "repro.py").unlink()
    ended = torchparity(folder, "run", str(bundle))
    assert ended.returncode == 2
    assert ended.stdout == ""
    first, second = ended.stderr.strip().splitlines()
    assert first.startswith("error: ")
    assert second.startswith("hint: ")


def test_a_candidate_that_dies_is_a_verdict(folder):
    ended = torchparity(folder, "check", "my_model.py:make", "--backend", "dies", "--isolate")
    assert ended.returncode == 1, ended.stderr
    assert "compiled by dies it is killed by SIGSEGV" in ended.stdout


def test_what_is_refused_is_said(folder):
    ended = torchparity(folder, "capture", "my_model.py:nested", "--backend", "aot_eager", "--out", "refused")
    assert ended.returncode == 2
    assert "refused: 001_dynamo: the input" in ended.stderr
