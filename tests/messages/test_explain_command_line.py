"""`torchparity explain` from the command line: what it says, what it writes, how it ends."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from torchparity.cli.start import begin as main

MODEL = """
import torch

class Broken(torch.nn.Module):
    def forward(self, x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

def make():
    return Broken(), (torch.randn(4, 6),)
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command here, and return its exit code and what it printed."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["torchparity", "explain", *words])
        try:
            with pytest.raises(SystemExit) as left:
                main()
        finally:
            logging.disable(logging.NOTSET)
        printed = capsys.readouterr()
        return left.value.code, printed.out, printed.err

    return run


def test_the_story_goes_to_stdout_and_to_a_file(call, tmp_path):
    code, out, err = call("model.py:make", "--backend", "eager", "--batch", "5", "--json", "story.json")
    assert code == 0, err
    assert out.splitlines()[0] == "make on eager: 2 frames, 4 subgraphs, 1 graph break, 2 recompiles"
    assert "graph break at model.py:7: " in out
    assert "rest of Broken.forward after line 7" in out
    assert "float32[any, 6]" not in out
    assert err == ""
    data = json.loads((tmp_path / "story.json").read_text())
    assert [frame["name"] for frame in data["frames"]] == ["0/0", "1/0", "0/1", "1/1"]
    assert data["frames"][0]["ends"]["place"]["line"] == 7
    assert data["exit_code"] == 0


def test_guards_are_listed_when_asked_for(call):
    code, out, _ = call("model.py:make", "--backend", "eager", "--calls", "1", "--dynamic", "--guards", "-q")
    assert code == 0
    assert "x is float32[any, any]" in out
    assert "symbols: " in out


def test_a_refusal_is_the_end_of_the_story(call):
    code, out, err = call("model.py:make", "--backend", "eager", "--fullgraph", "-q")
    assert code == 125
    assert "failed at model.py:7: " in out
    assert "raised Unsupported: " in out
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["model.py:make", "--backend", "inductr"], "error: there is no torch.compile backend named 'inductr'"),
        (["model.py:nothing"], "error: model.py has no 'nothing'"),
        (["model.py:make", "--calls", "0"], "error: 0 calls leave nothing to tell"),
        (["model.py:make", "--batch", "0"], "error: 0 rows leave nothing to tell"),
        (["model.py:make", "--json", "nowhere/story.json"], "error: there is no folder nowhere to write story.json to"),
    ],
)
def test_what_cannot_be_is_refused_in_two_lines(call, words, error):
    code, _, err = call(*words, "-q")
    assert code == 2
    lines = err.splitlines()
    assert lines[-2] == error
    assert lines[-1].startswith("hint: ")


def test_help_says_what_the_exit_codes_mean():
    words = [sys.executable, "-m", "torchparity", "explain", "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0
    for word in ("Exit code: 0 told", "--guards", "--inlined", "--batch", "--json"):
        assert word in ended.stdout
