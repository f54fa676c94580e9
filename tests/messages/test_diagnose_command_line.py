"""What `diagnose` and `report` say, the help of every command, and what a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.report.samples import diagnosis
from typer.testing import CliRunner

from torchparity.cli.diagnose import with_json
from torchparity.cli.main import app
from torchparity.cli.start import begin as main
from torchparity.errors import UsageError
from torchparity.hunting.store import Store
from torchparity.report.page import write_run

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]
MODEL = """
import torch

def make():
    return torch.nn.Linear(3, 2), (torch.ones(4, 3),)

def broken():
    raise ValueError("no model today")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["torchparity", *words])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


BAD = {
    "neither": (["diagnose", "nothing"], "nothing is neither a bundle nor a model", "file.py:name"),
    "no file": (["diagnose", "n.py:make"], "there is no file n.py", "did you mean m.py?"),
    "raises": (["diagnose", "m.py:broken"], "broken() raises ValueError: no model today", "m.py:8"),
    "backend": (["diagnose", "m.py:make", "--backend", "inducto"], "'inducto'", "did you mean 'inductor'?"),
    "budget": (["diagnose", "m.py:make", "--budget", "soon"], "'soon' is not a time", "5m"),
    "workers": (["diagnose", "m.py:make", "--workers", "0"], "--workers 0 is too few", "at least 1"),
    "setting": (["diagnose", "m.py:make", "--config", "x"], "'x' is not a setting", "inductor.key=value"),
    "mode": (["diagnose", "m.py:make", "--mode", "fast"], "no torch.compile mode 'fast'", "max-autotune"),
    "full": (["diagnose", "m.py:make", "--out", "."], ". is not an empty folder", "another folder"),
    "json": (["diagnose", "m.py:make", "--json", "no/x.json"], "there is no folder no", "make it first"),
    "json folder": (["diagnose", "m.py:make", "--json", "."], ". is a folder", "the name of a file"),
    "unwritable": (["diagnose", "m.py:make", "--out", "/dev/null/x"], "cannot write to /dev/null/x", "another folder"),
    "engine": (["diagnose", "m.py:make", "--backend", "aot_inductor", "--train"], "does not train", "--train"),
    "no run": (["report", "."], ". holds no run", "torchparity diagnose"),
    "no folder": (["report", "nowhere"], "nowhere holds no run", "torchparity diagnose"),
    "many": (["report", ".", "--json", "x.json"], ". is not one run", "name its folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_two_lines_and_leaves_nothing(folder, monkeypatch, capsys, case):
    words, error, hint = BAD[case]
    code, out, err = said(monkeypatch, capsys, *words, *(["-q"] if words[0] == "diagnose" else []))
    lines = err.strip().splitlines()
    assert (code, out, len(lines)) == (2, "", 2), err
    assert lines[0].startswith("error: ") and error in lines[0]
    assert lines[1].startswith("hint: ") and hint in lines[1]
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["m.py"]


def test_a_run_is_shown_again(folder):
    write_run(diagnosis(), folder / "runs" / "one")
    (folder / "runs" / "one" / "index.html").unlink()
    done = CliRunner().invoke(app, ["report", "runs/one", "--json", "copy.json"])
    assert (done.exit_code, done.stdout) == (0, "runs/one/index.html\n")
    assert (folder / "runs" / "one" / "index.html").is_file()
    assert json.loads((folder / "copy.json").read_text())["subject"] == "model.py:make"


def test_a_run_is_no_bundle(folder, monkeypatch, capsys):
    write_run(diagnosis(), folder / "one")
    code, _, err = said(monkeypatch, capsys, "diagnose", "one", "-q")
    assert (code, err.splitlines()[0]) == (2, "error: one is a run")


def test_many_runs_get_an_index(folder):
    for name in ("one", "two"):
        write_run(diagnosis(), folder / "runs" / name)
    done = CliRunner().invoke(app, ["report", "runs"])
    assert (done.exit_code, done.stdout) == (0, "runs/index.html\n")
    assert "two/index.html" in (folder / "runs" / "index.html").read_text()


def test_a_hunt_gets_its_page(folder):
    store = Store(folder / "found", create=True)
    store.add(1, {"status": "same"}, "", 1_000_000.0)
    store.close()
    done = CliRunner().invoke(app, ["report", "found", "--json", "hunt.json"])
    assert (done.exit_code, done.stdout) == (0, "found/index.html\n")
    assert "No bug yet in 1 program" in (folder / "found" / "index.html").read_text()
    assert json.loads((folder / "hunt.json").read_text())["programs"] == 1
    assert (folder / "found" / "finds.jsonl").read_text() == ""


def test_a_damaged_run_is_refused(folder):
    write_run(diagnosis(), folder / "one")
    (folder / "one" / "run.json").write_text("{")
    done = CliRunner().invoke(app, ["report", "one"])
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["diagnose", "m:x", "--json"], ["diagnose", "m:x", "--json=-"]),
        (["diagnose", "--json", "-q", "m:x"], ["diagnose", "--json=-", "-q", "m:x"]),
        (["diagnose", "m:x", "--json", "o.json"], ["diagnose", "m:x", "--json", "o.json"]),
        (["diagnose", "m:x", "--json", "-"], ["diagnose", "m:x", "--json", "-"]),
        (["check", "m:x", "--json"], ["check", "m:x", "--json"]),
        ([], []),
    ],
)
def test_json_alone_is_for_the_standard_output(words, expected):
    assert with_json(words) == expected


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns_and_says_something_of_every_option(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*filter(None, [command]), "--help"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("typed", "expected"), [("dia", "diagnose"), ("rep", "report"), ("min", "minify"), ("diagnose --bud", "--budget")]
)
def test_a_shell_completes(typed, expected):
    words = f"torchparity {typed}"
    environment = {**os.environ, "_TORCHPARITY_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split()) - 1)
    program = "import sys; sys.argv[0] = 'torchparity'; from torchparity.cli.start import begin as main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert expected in done.stdout.split()
