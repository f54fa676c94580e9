"""`torchparity minify` from the command line: what it says, what it leaves, how it ends."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time

import pytest

from torchparity.cli.start import begin as main
from warm import command_line as run

MODEL = """
import torch

class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(30):
            x = torch.sin(x) if place == 11 else torch.relu(x) + place
        return x

def make():
    torch.manual_seed(0)
    return Chain(), (torch.randn(4, 6),)
"""
CHECK = "grep -q 'torch.sin(' {}/repro.py"


def command(*words):
    return [sys.executable, "-m", "torchparity", *map(str, words)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("minify")
    (place / "model.py").write_text(MODEL)
    assert run(place, "capture", "model.py:make", "--backend", "aot_eager", "--out", "cases").returncode == 0
    return place


def test_the_users_own_command_decides(folder):
    ended = run(folder, "minify", "cases/001_dynamo", "--check", CHECK, "--out", "checked")
    assert ended.returncode == 0, ended.stderr
    assert "operations became 1, 1 inputs 1" in ended.stdout
    assert "reproduced  3 of 3" in ended.stdout
    assert ended.stderr == "reading the case\n"
    shown = run(folder, "show", "checked")
    assert "operations  1" in shown.stdout
    log = [json.loads(line) for line in (folder / "checked" / "log.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in log[:3]] == ["start", "asked", "answered"]
    assert log[-1]["event"] == "ended"
    assert not (folder / "checked" / "queries").exists()
    again = run(folder, "minify", "cases/001_dynamo", "--check", CHECK, "--out", "checked")
    assert again.returncode == 2
    assert again.stderr.splitlines()[-2:] == [
        "error: checked holds a minification already",
        "hint: go on with `--resume checked`, or name another folder",
    ]


@pytest.mark.slow
def test_a_budget_of_queries_ends_it_and_resume_goes_on(folder):
    short = run(folder, "minify", "cases/001_dynamo", "--check", CHECK, "--queries", 4, "--out", "short")
    assert "(stopped early)" in short.stdout
    assert "go on with  torchparity minify --resume short" in short.stdout
    refused = run(folder, "minify", "--resume", "short")
    assert refused.returncode == 2
    assert "hint: give the same command again" in refused.stderr
    whole = run(folder, "minify", "--resume", "short", "--check", CHECK)
    assert whole.returncode == 0, whole.stderr
    assert "operations became 1" in whole.stdout
    keys = [
        entry["key"]
        for entry in map(json.loads, (folder / "short" / "log.jsonl").read_text().splitlines())
        if entry["event"] == "answered"
    ]
    assert len(keys) == len(set(keys))


def test_an_interrupt_keeps_the_best_so_far(folder):
    slow = f"sleep 0.5; {CHECK}"
    words = command("minify", "cases/001_dynamo", "--check", slow, "--out", "stopped")
    # A job in the background inherits an ignored interrupt.
    process = subprocess.Popen(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log = folder / "stopped" / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count('"adopted"') >= 2):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "go on with  torchparity minify --resume stopped" in out
    assert run(folder, "show", "stopped").returncode == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["minify"], "error: name a bundle, a model, or `--resume FOLDER`"),
        (["minify", "nowhere"], "error: nowhere is neither a bundle nor a model"),
        (["minify", "--resume", "cases"], "error: no minification was begun in cases"),
        (["minify", "cases/001_dynamo", "--budget", "soon"], "error: 'soon' is not a time"),
        (["minify", "cases/001_dynamo", "--workers", "0"], "error: --workers 0 is too few"),
        (
            ["minify", "cases/001_dynamo", "--check", "false", "--out", "no"],
            "error: nothing fails: 001_dynamo does not fail here: same",
        ),
        (["minify", "cases/001_dynamo", "--check", "exit 125"], "error: 001_dynamo does not fail here: no answer"),
        (["minify", "model.py:make", "--check", "true"], "error: `--check` decides about a bundle, not about a model"),
        (["minify", "cases/001_dynamo", "--check", "true", "--out", "cases"], "error: cases is not empty"),
    ],
)
def test_what_cannot_be_is_refused_in_two_lines(folder, words, error, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["torchparity", *words])
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        logging.disable(logging.NOTSET)
    assert left.value.code == {"same": 3, "no answer": 125}.get(error.rpartition(": ")[2], 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == error
    assert lines[-1].startswith("hint: ")
