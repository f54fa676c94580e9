"""The command line as a person meets it: exit codes, two-line errors, help."""

from __future__ import annotations

import json
import sys
import textwrap
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from torchparity.cli.main import app
from torchparity.cli.start import begin as main
from warm import command_line as run

MODEL = """
import torch
import torchparity
from torchparity.faults import plant

def make():
    return torch.nn.Linear(4, 4), (torch.randn(2, 4),)

def named():
    return torch.nn.Linear(4, 4), (), {"input": torch.randn(2, 4)}

subject = torchparity.Subject(torch.nn.Linear(4, 4), (torch.randn(2, 4),), name="the subject")

def broken():
    raise ValueError("this factory is broken")

def surplus():
    return torch.nn.Linear(4, 4), (torch.randn(2, 4), 1, 2)

def raising():
    return torch.nn.Linear(4, 4), (torch.randn(2, 5),)

def nowhere():
    return torch.nn.Linear(4, 4).to("cuda:7"), (torch.randn(2, 4),)

def needs(argument):
    return argument

number = 3

class Greedy(torch.nn.Module):
    def forward(self, x):
        if type(torch.utils._python_dispatch._get_current_dispatch_mode()).__name__ == "Reference":
            raise torch.OutOfMemoryError("out of memory: tried to allocate 80 GiB")
        return x

def greedy():
    return Greedy(), (torch.randn(2),)
"""
BACKEND = """
@torch._dynamo.register_backend(name="one_percent_off")
def one_percent_off(graph_module, inputs):
    return lambda *args: tuple(value * 1.01 for value in graph_module(*args))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL + BACKEND)
    return tmp_path


def test_same_is_0_and_json_holds_everything(folder):
    done = run(folder, "check", "my_model.py:make", "--backend", "aot_eager", "--train", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SAME  make against aot_eager")
    assert done.stderr == ""  # Nobody watches a pipe.
    data = json.loads((folder / "out.json").read_text())
    assert {"schema", "status", "reasons", "leaves", "runs", "recipe", "environment"} <= set(data)
    assert data["status"] == "same"
    assert "grad.weight" in {leaf["path"] for leaf in data["leaves"]}
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_differs_is_1(folder):
    done = run(folder, "check", "my_model.py:make", "--backend", "one_percent_off", "--quiet")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("DIFFERS  make against one_percent_off")
    assert "output" in done.stdout


def test_severity_decides_what_fails_where_one_is_named(folder):
    words = ["check", "my_model.py:make", "--backend", "one_percent_off", "--quiet"]
    done = run(folder, *words, "--fail-on", "wrong")
    assert done.returncode == 1
    assert "severity wrong: as a whole output has moved by 1 % of its size" in done.stdout
    assert "compiled: 1 of 1 operations, in 1 graph" in done.stdout
    done = run(folder, *words, "--fail-on", "nonfinite")
    assert done.returncode == 0
    assert done.stdout.startswith("DIFFERS")
    assert "severity wrong, below nonfinite: not a failure here" in done.stderr
    done = run(folder, *words, "--fail-on", "wrnog")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no severity 'wrnog'\nhint: did you mean 'wrong'?")


def test_unknown_is_125(folder):
    done = run(folder, "check", "my_model.py:raising", "--backend", "eager")
    assert done.returncode == 125
    assert "the model itself raises RuntimeError" in done.stdout


def test_files_for_ci(folder):
    (folder / "step.md").write_text("# what the job wrote before")
    words = ["check", "my_model.py:make", "--backend", "one_percent_off", "--quiet"]
    done = run(folder, *words, "--junit=out.xml", "--summary", "step.md")
    assert done.returncode == 1, done.stderr
    suite = ElementTree.parse(folder / "out.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    assert suite.find("testcase/failure").get("type") == "value"
    assert suite.find("testcase/failure").text.splitlines()[0] == done.stdout.splitlines()[0]
    text = (folder / "step.md").read_text()
    assert text.startswith("# what the job wrote before\n## DIFFERS: make against one\\_percent\\_off\n")
    assert "```sh\ntorchparity check my_model.py:make --backend one_percent_off\n```" in text


@pytest.mark.parametrize("target", ["my_model.py:named", "my_model.py:subject", "my_model:make"])
def test_other_forms_of_target(folder, target):
    assert run(folder, "check", target, "--backend", "eager").returncode == 0


BAD = {
    "missing file": (["check", "my_modle.py:make"], 2, "there is no file my_modle.py", "did you mean my_model.py?"),
    "missing name": (["check", "my_model.py:mak"], 2, "my_model.py has no 'mak'", "did you mean 'make'?"),
    "missing module": (["check", "nowhere.at.all:make"], 2, "there is no module 'nowhere.at.all'", "a target is"),
    "no target": (["check", "make"], 2, "'make' is not a target", "file.py:name"),
    "broken factory": (
        ["check", "my_model.py:broken"],
        2,
        "broken() raises ValueError",
        "my_model.py:15",
    ),
    "wrong arguments": (["check", "my_model.py:surplus"], 2, "cannot be called with 3 arguments", "its signature is"),
    "factory with arguments": (["check", "my_model.py:needs"], 2, "needs takes arguments", "write a factory"),
    "not a model": (["check", "my_model.py:number"], 2, "number is a int, not a model", "give a module"),
    "unknown backend": (
        ["check", "my_model.py:make", "--backend", "inducto"],
        2,
        "'inducto'",
        "did you mean 'inductor'?",
    ),
    "absent device": (["check", "my_model.py:nowhere"], 2, "nowhere() raises", "run it alone"),
    "absent --device": (["check", "my_model.py:make", "--device", "cuda:7"], 2, "no device 'cuda:7'", "--device cpu"),
    "no steps": (["check", "my_model.py:make", "--train", "--steps", "0"], 2, "0 optimizer steps", "--steps 1"),
    "no training": (["check", "my_model.py:make", "--optimizer", "adam"], 2, "need a backward pass", "--train"),
    "unknown option": (["check", "my_model.py:make", "--trian"], 2, "No such option: --trian", "--help"),
    "bad setting": (["check", "my_model.py:make", "--config", "x"], 2, "'x' is not a setting", "inductor.key=value"),
    "unknown setting": (["check", "my_model.py:make", "--config", "inductor.x=1"], 2, "no setting 'x'", "torch's own"),
    "no folder": (["check", "my_model.py:make", "--json", "no/where.json"], 2, "no folder no", "make it first"),
    "no folder for JUnit": (["check", "my_model.py:make", "--junit", "no/x.xml"], 2, "no folder no", "make it first"),
    "no folder for Markdown": (
        ["check", "my_model.py:make", "--summary", "no/x.md"],
        2,
        "no folder no",
        "make it first",
    ),
    "a folder for JUnit": (["check", "my_model.py:make", "--junit", "."], 2, ". is a folder", "the name of a file"),
    "out of memory": (["check", "my_model.py:greedy"], 125, "out of memory in the run 'float64", "--no-reference"),
    "no command": (["chekc"], 2, "No such command 'chekc'", "--help"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_two_lines(folder, monkeypatch, capsys, case):
    words, code, error, hint = BAD[case]
    (folder / "my_model.py").write_text(MODEL)  # A backend cannot be registered twice in this process.
    before = sorted(path.name for path in folder.iterdir())
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["torchparity", *words, *(["--quiet"] if words[0] == "check" else [])])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert (left.value.code, said.out) == (code, ""), said.err
    assert len(lines) == 2, said.err
    assert lines[0].startswith("error: ") and error in lines[0]
    assert lines[1].startswith("hint: ") and hint in lines[1]
    after = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    assert after == before


def test_version_and_lists():
    asked = {words: CliRunner().invoke(app, words.split()).stdout for words in ("--version", "backends", "faults")}
    assert asked["--version"].startswith("torchparity ")
    assert "inductor" in asked["backends"].split()
    assert "matmul_tf32" in asked["faults"]


def test_interrupt_leaves_no_traceback(folder):
    (folder / "slow.py").write_text(
        textwrap.dedent("""
        import os, signal, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits "ignored"
        def make():
            def model(x):
                os.kill(os.getpid(), signal.SIGINT)
                return x
            return model, (torch.randn(2),)
        """)
    )
    done = run(folder, "check", "slow.py:make", "--quiet")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
