"""`diagnose` from end to end, with real processes; the compilers are wrong on purpose, and need no C++ compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import torchparity
from torchparity.errors import UsageError
from torchparity.faults import plant
from torchparity.records import Status

MODEL = """
import os, signal
import torch
from torchparity.faults import plant
from torch._dynamo import register_backend

wrong = plant("wrong_gelu", where="forward", site=0)


@register_backend(name="wrong_backend")
def wrong_backend(graph_module, inputs, **options):
    return wrong(graph_module, inputs, **options)


@register_backend(name="refusing_backend")
def refusing_backend(graph_module, inputs, **options):
    if any("gelu" in str(node.target) for node in graph_module.graph.nodes):
        raise NotImplementedError("no gelu here")
    return graph_module.forward


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        y = torch.nn.functional.gelu(x)
        return y.sum(-1), x


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 8),)
"""


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return torch.nn.functional.gelu(x).sum(-1), x


def made():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 8),)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    model, args = made()
    folder = tmp_path_factory.mktemp("runs") / "one"
    heard = []
    result = torchparity.diagnose(
        model, args, backend=plant("wrong_gelu", site=0), out=folder, workers=1, listen=heard.append
    )
    return result, folder, heard


def test_every_stage_finds_what_it_is_for(found):
    result, _, _ = found
    assert result.status is Status.DIFFERS
    assert [stage.name for stage in result.stages] == ["check", "story", "graph", "minify", "locate", "blame"]
    assert {stage.ending for stage in result.stages} == {"done"}, result.stages
    assert result.located.culprit.operation == "gelu"
    assert "test_diagnose.py" in result.located.culprit.line
    assert result.smallest.operations == 1
    assert result.smallest.reproduced == (3, 3)
    assert (result.blame.stage, result.blame.part) == ("backend", "gelu")
    assert result.exit_code == 1


def test_the_folder_holds_everything(found):
    _, folder, _ = found
    data = json.loads((folder / "run.json").read_text())
    assert data["lines"][0][0] == "DIFFERS"
    assert (folder / data["smallest"]["script_path"]).is_file()
    assert "gelu" in (folder / "index.html").read_text()
    assert torchparity.read_bundle(folder / "graph").compute_nodes == data["graph"]["operations"]
    assert not list(folder.glob(".*"))


def test_the_picture_is_of_the_graph_that_fails(found):
    result, _, _ = found
    operations = [node for node in result.graph.nodes if node.place is not None]
    assert [node.place for node in operations] == list(range(result.graph.operations))
    culprit = operations[result.located.culprit.place]
    assert culprit.operation == "gelu"
    assert culprit.value == "float32[4, 8]"
    assert "from" in culprit.sample


def test_the_curve_has_every_query(found):
    result, _, _ = found
    assert len(result.smallest.curve) == result.smallest.queries
    assert result.smallest.curve[-1].number == result.smallest.queries
    assert any(query.adopted for query in result.smallest.curve)


def test_progress_names_stages_and_the_time_left(found):
    _, _, heard = found
    assert list(dict.fromkeys(event.stage for event in heard)) == [
        "check", "story", "graph", "minify", "locate", "blame",
    ]  # fmt: skip
    assert heard[0].left is None
    assert heard[-1].left is not None


def test_the_issue_says_who_is_to_blame(found):
    _, folder, _ = found
    issue = folder / "small" / "issue.md"
    if issue.exists():
        assert "### Where it comes from" in issue.read_text()


def test_where_nothing_differs_there_is_nothing_to_find(tmp_path):
    model, args = made()
    result = torchparity.diagnose(model, args, backend="aot_eager", out=tmp_path / "run")
    assert (result.status, result.exit_code, result.ended) == (Status.SAME, 0, "nothing to find")
    assert [stage.name for stage in result.stages] == ["check"]
    assert (tmp_path / "run" / "index.html").is_file()


@pytest.mark.slow
def test_a_bundle_is_diagnosed_too(found, tmp_path):
    _, folder, _ = found
    case = torchparity.read_bundle(folder / "graph")
    result = torchparity.diagnose(case, out=tmp_path / "run", workers=1)
    assert result.located.culprit.operation == "gelu"
    assert result.smallest.operations == 1


def test_a_bundle_says_itself_how_it_is_compiled(found):
    _, folder, _ = found
    with pytest.raises(UsageError, match="a bundle says itself how it is compiled"):
        torchparity.diagnose(torchparity.read_bundle(folder / "graph"), backend="eager")


def test_a_budget_ends_it_with_what_there_is():
    model, args = made()
    result = torchparity.diagnose(model, args, backend=plant("wrong_gelu", site=0), budget=6.0, workers=1)
    assert result.status is Status.DIFFERS
    assert result.seconds < 60
    assert any(stage.ending in ("skipped", "stopped") for stage in result.stages)


def command(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "torchparity", "diagnose", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_ctrl_c_leaves_the_best_so_far(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    process = command(tmp_path, "model.py:make", "--backend", "wrong_backend", "--out", "run")
    for line in process.stderr:
        if "graph" in line or "locate" in line:
            break
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert output.startswith("DIFFERS")
    assert "interrupted" in output
    data = json.loads((tmp_path / "run" / "run.json").read_text())
    assert data["interrupted"] is True
    assert "ended early: interrupted" in (tmp_path / "run" / "index.html").read_text()


@pytest.mark.slow
def test_json_is_all_that_stdout_holds_and_a_run_gets_a_folder_of_its_own(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    process = command(tmp_path, "model.py:make", "--backend", "aot_eager", "--json", "-q")
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-model.py_make")
    assert json.loads(output) == json.loads((folder / "run.json").read_text())
    assert json.loads(output)["lines"][-1] == ["page", f"runs/{folder.name}/index.html"]


@pytest.mark.slow
def test_an_error_is_located_when_the_graph_is_small(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    process = command(tmp_path, "model.py:make", "--backend", "refusing_backend", "--json", "-q")
    output, _ = process.communicate(timeout=300)
    data = json.loads(output)
    stages = [(run["name"], run["ending"]) for run in data["stages"]]
    assert stages[-4:] == [("minify", "done"), ("locate", "found nothing"), ("locate", "done"), ("blame", "done")]
    assert data["located"]["how"] == "raises"
    assert data["located"]["culprit"]["operation"] == "gelu"
    assert data["located"]["compiles"] == 2
    assert data["smallest"]["operations"] == 1
    assert dict(data["lines"])["where"].startswith("gelu makes the compiler fail  model.py:")
