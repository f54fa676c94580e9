"""What graphs show only as a whole, or not at all: lost writes, what Python does, graphs that do not run alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import torchparity
from torchparity.graphs.extract import Extractor
from torchparity.records import Status
from torchparity.request import request_for
from torchparity.run.target import Target
from torchparity.verbs.failing import examine
from torchparity.verbs.programs import minify_program
from torchparity.workers.pool import Pool

MODEL = """
import torch
from torch._dynamo import register_backend


@register_backend(name="forgetful")
def forgetful(graph_module, inputs, **options):
    # A write to a scalar is lost, unless it is returned.
    returned = [node.name for node in graph_module.graph.find_nodes(op="output")[0].all_input_nodes]

    def run(*arguments):
        kept = [(value, value.clone()) for value in arguments if isinstance(value, torch.Tensor) and not value.dim()]
        result = graph_module(*arguments)
        for value, before in kept if not any(name.startswith("add_") for name in returned) else ():
            value.copy_(before)
        return result

    return run


class Counting(torch.nn.Module):
    def __init__(self, blocks=6):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2 * blocks))

    def forward(self, x, steps):
        half = len(self.blocks) // 2
        for block in self.blocks[:half]:
            x = torch.tanh(block(x)) + x
        steps.add_(1)
        for block in self.blocks[half:]:
            x = torch.tanh(block(x)) + x
        return x


def counting():
    torch.manual_seed(0)
    return Counting(), (torch.randn(2, 8), torch.tensor(3.0))

"""

ONCE = """
calls = []


@register_backend(name="once")
def once(graph_module, inputs, **options):
    def run(*arguments):
        calls.append(0)
        if len(calls) > 2:
            raise RuntimeError("it ran twice, as the model did")
        return tuple(value + 1 for value in graph_module(*arguments))

    return run


"""


@pytest.fixture
def file(tmp_path):
    place = tmp_path / "own_model.py"
    place.write_text(MODEL)
    return place


@pytest.mark.parametrize("silent", [False, True])
def test_who_only_writes_to_an_input_need_not_be_returned(silent):
    def function(x, steps, buffer):
        y = x.cos()
        steps.add_(1)
        buffer[1:].mul_(2)
        z = y.clone().add_(1)
        return z + 1

    graph_module = torch.fx.symbolic_trace(function)
    extractor = Extractor(graph_module, [torch.randn(3), torch.ones(()), torch.ones(3)])
    named = {node.name: node for node in extractor.compute}

    def outputs(*names, **how):
        part = extractor.part([named[name] for name in names], silent=silent, **how)
        return [node.name for node in part.graph_module.graph.find_nodes(op="output")[0].all_input_nodes]

    assert outputs("add_") == ([] if silent else ["add_"])
    assert outputs("getitem", "mul_") == ([] if silent else ["mul_"])
    assert outputs("cos", "add_", "add") == (["add"] if silent else ["add", "add_"])
    # What writes to a value of its own is seen in what it returns, and nowhere else.
    assert outputs("clone", "add__1") == ["add__1"]


@pytest.mark.slow
def test_a_write_that_is_lost_ends_at_the_line_that_writes(file, tmp_path):
    small = torchparity.minify(f"{file}:counting", backend="forgetful", out=tmp_path / "small", workers=1)
    assert small.compute_nodes == 1
    assert small.reproduced == (3, 3)
    assert small.signature.kind == "mutation"
    assert "add_" in small.script


def run(*arguments):
    command = [sys.executable, "-m", "torchparity", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


ASKS = """
import torch


class Asks(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(blocks))

    def forward(self, x):
        for place, block in enumerate(self.blocks):
            x = torch.tanh(block(x)) + x
            if place == 1 and torch.compiler.is_compiling():
                x = x * 2
        return x


def asks():
    return Asks(BLOCKS), (torch.randn(2, 8),)
"""


@pytest.mark.slow
def test_a_models_file_is_made_small(tmp_path):
    place = tmp_path / "asks.py"
    place.write_text(ASKS.replace("BLOCKS", "2"))
    with Pool(workers=1, preload=("torchparity.minifier.programs", "torchparity.verbs.jobs")) as pool:
        small = minify_program(Target(f"{place}:asks"), request_for("check", {"backend": "eager"}), pool)
    assert small.reproduced == (3, 3)
    assert len(small.script.strip().splitlines()) <= 15
    assert "class" not in small.script


@pytest.mark.slow
def test_what_no_graph_shows_is_made_small_as_python(tmp_path):
    place = tmp_path / "asks.py"
    place.write_text(ASKS.replace("BLOCKS", "12"))
    done = run("minify", f"{place}:asks", "--backend", "aot_eager", "--out", tmp_path / "small")
    assert done.returncode == 0, done.stderr
    script = tmp_path / "small" / "repro.py"
    assert len(script.read_text().strip().splitlines()) <= 15
    assert "3 of 3" in done.stdout
    assert subprocess.run([sys.executable, script], check=False, capture_output=True).returncode == 1


def test_a_graph_that_does_not_run_alone_is_not_what_is_looked_for(tmp_path):
    place = tmp_path / "twice.py"
    place.write_text(MODEL.partition("@register_backend")[0] + ONCE + ASKS.replace("BLOCKS", "2"))
    subject = Target(f"{place}:asks").load()
    found = examine(subject, request_for("check", {"backend": "once"}), tmp_path)
    assert found.verdict.status is Status.DIFFERS
    assert found.verdict.failure is None
    assert not found.failing
    assert "which the model as a whole does not" in " ".join(found.notes)
