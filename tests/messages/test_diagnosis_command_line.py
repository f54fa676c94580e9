"""What `locate`, `blame` and `passes` say, and the codes they leave with."""

from __future__ import annotations

import json
import sys
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from torchparity.cli.main import app
from torchparity.cli.start import begin as main
from torchparity.records import Blame, Located, NodeError, PassesReport, PassResult, Status, Trial
from torchparity.report.findings import render_blame, render_located, render_passes, short_line

MODEL = """
import torch

def f(x):
    return torch.relu(x) + 1

def make():
    return torch.nn.Linear(3, 2), (torch.ones(4, 3),)

def keep(graph_module):
    return graph_module

def bend(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "output":
            with graph_module.graph.inserting_before(node):
                node.args = (graph_module.graph.call_function(torch.mul, (node.args[0], 1.1)),)
    graph_module.recompile()
    return graph_module

right, wrong, nonsense = [keep], [keep, bend], [3]
"""


@pytest.fixture
def target(tmp_path):
    (tmp_path / "m.py").write_text(MODEL)
    return str(tmp_path / "m.py")


def text_of(render, record):
    out = StringIO()
    render(record, Console(file=out, width=100, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("command", ["locate", "blame"])
def test_what_is_neither_bundle_nor_model_is_refused(command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["torchparity", command, "nothere"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(
        "error: nothere is neither a bundle nor a model\nhint: name a folder that `capture` wrote, or file.py:name\n"
    )


@pytest.mark.parametrize(("passes", "code"), [("right", 0), ("wrong", 1)])
def test_passes_of_ones_own(target, passes, code, tmp_path):
    result = CliRunner().invoke(
        app, ["passes", f"{target}:make", "--passes", f"{target}:{passes}", "--json", str(tmp_path / "out.json")]
    )
    assert result.exit_code == code
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["passes"][-1]["status"] == ("differs" if code else "same")
    assert ("bend (passes) changes the numbers" in result.output) == bool(code)


def test_a_list_of_something_else_is_refused(target, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["torchparity", "passes", f"{target}:make", "--passes", f"{target}:nonsense"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "is not a list of functions" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["locate", "blame", "passes"])
def test_help_fits_a_terminal(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    assert "Exit code" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_a_finding_is_told_with_its_line_and_nothing_is_taken_for_markup():
    culprit = NodeError(
        place=3, name="add[bold]", operation="add", line="/a/b/model.py:7 in forward: x[red] + 1",
        introduced=100.0, introduced_kind="value", propagated=100.0, propagated_kind="value",
    )  # fmt: skip
    found = Located(
        subject="case", kind="value", how="introduced", culprit=culprit, nodes=(culprit,), threshold=8.0, compiles=1
    )
    text = text_of(render_located, found)
    assert "add introduces the error (value)  (1 compilation, 0 s)" in text
    assert "model.py:7 in forward: x[red] + 1" in text
    assert "add[bold]" in text
    nothing = Located(subject="case", kind="value", how="fusion", culprit=None, compiles=9)
    assert text_of(render_located, nothing).startswith("NOT FOUND  case differs in value  (9 compilations")


def test_blame_shows_two_runs():
    found = Blame(
        subject="case",
        kind="value",
        stage="codegen",
        part="tanh",
        switch={"inductor.cpp.simdlen": 1},
        failing=Trial(change="as it is", status=Status.DIFFERS, kind="value"),
        passing=Trial(change="inductor.cpp.simdlen=1", status=Status.SAME),
        trials=(Trial(change="as it is", status=Status.DIFFERS),) * 4,
    )
    assert text_of(render_blame, found).splitlines() == [
        "BLAME  the code that inductor writes: tanh  (4 runs, 0 s)",
        "  goes away with inductor.cpp.simdlen = 1",
        "  fails   as it is: value",
        "  passes  inductor.cpp.simdlen=1",
    ]


def test_passes_show_the_first_wrong_one():
    wrong = PassResult(
        name="fold", stage="passes", number=0, changed=True, status=Status.DIFFERS, kind="value", score=99.0,
        leaf="output", difference="-a\n+b",
    )  # fmt: skip
    text = text_of(render_passes, PassesReport(subject="m", passes=(wrong,), notes=("x could not be judged",)))
    assert "fold (passes) changes the numbers" in text
    assert "value at output, score 99" in text
    assert "note: x could not be judged" in text


def test_a_source_line_is_shown_without_its_folders():
    assert short_line("/a/b/c.py:3 in forward: y = x") == "c.py:3 in forward: y = x"
    assert short_line("") == ""
