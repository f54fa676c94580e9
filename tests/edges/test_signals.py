"""Interrupts and kills at many moments of every command: nothing left running, nothing lost, resume works."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

MODEL = """
import torch
from torch._dynamo import register_backend


@register_backend
def wrong_sine(graph, inputs):
    def run(*args):
        class Wrong(torch.fx.Interpreter):
            def run_node(self, node):
                result = super().run_node(node)
                return result + 0.1 if node.op == "call_function" and "sin" in str(node.target) else result

        return Wrong(graph).run(*args)

    return run


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    return (lambda x: torch.sin(model(x)).cos() + 1), (torch.randn(3, 4),)
"""
WRONG = ("model.py:make", "--backend", "wrong_sine")
COMMANDS = {
    "check": ("check", *WRONG, "-q"),
    "check --isolate": ("check", *WRONG, "-q", "--isolate"),
    "capture": ("capture", *WRONG, "--out", "out"),
    "explain": ("explain", *WRONG, "-q"),
    "locate": ("locate", *WRONG, "-q"),
    "blame": ("blame", *WRONG, "-q"),
    "minify": ("minify", *WRONG, "-q", "--out", "out"),
    "diagnose": ("diagnose", *WRONG, "-q", "--out", "out"),
    "run": ("run", "cases/001_dynamo", "-q"),
}
WRITE = ("capture", "minify", "diagnose")
SECONDS = 12.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("the user's")
    return tmp_path


def begun(folder: Path, command: str, mark: str) -> subprocess.Popen[str]:
    if command == "run" and not (folder / "cases").exists():
        words = [sys.executable, "-m", "torchparity", "capture", *WRONG, "--out", "cases"]
        subprocess.run(words, cwd=folder, capture_output=True, check=True)
    return subprocess.Popen(
        [sys.executable, "-m", "torchparity", *COMMANDS[command]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EDGES_MARK": mark},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def left_running(mark: str) -> list[int]:
    """Return the processes that carry a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"EDGES_MARK={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def gone(mark: str) -> bool:
    for _ in range(100):
        if not left_running(mark):
            return True
        time.sleep(0.1)
    return False


def interrupt(folder: Path, command: str, moment: float) -> None:
    mark = uuid.uuid4().hex
    process = begun(folder, command, mark)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)

    assert process.returncode in (130, -2) or process.returncode in (0, 1), (moment, process.returncode, err)
    assert "Traceback" not in err or moment < 0.15, (moment, err)  # Python itself may still be starting.
    assert gone(mark), moment
    assert (folder / ".git" / "HEAD").read_text() == "the user's"


def kill(folder: Path, command: str, moment: float) -> None:
    mark = uuid.uuid4().hex
    shutil.rmtree(folder / "out", ignore_errors=True)
    process = begun(folder, command, mark)
    time.sleep(moment)
    process.kill()
    process.communicate(timeout=60)

    assert gone(mark), moment
    assert (folder / ".git" / "HEAD").read_text() == "the user's"
    if (
        command == "minify"
        and (folder / "out" / "log.jsonl").exists()
        and (folder / "out" / "log.jsonl").stat().st_size
    ):
        words = [sys.executable, "-m", "torchparity", "minify", "--resume", "out", "-q"]
        again = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert again.returncode == 0, (moment, again.stdout, again.stderr)


@pytest.mark.parametrize("command", ["check", "minify"])
def test_an_interrupt_leaves_nothing_running(folder: Path, command: str) -> None:
    for moment in (0.4, 4.0):
        interrupt(folder, command, moment)
        shutil.rmtree(folder / "out", ignore_errors=True)


def test_a_kill_leaves_what_can_be_gone_on_with(folder: Path) -> None:
    kill(folder, "minify", 6.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_at_forty_moments(folder: Path, command: str) -> None:
    dice = random.Random(command)
    for _ in range(40):
        interrupt(folder, command, dice.uniform(0.1, SECONDS))
        shutil.rmtree(folder / "out", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", WRITE)
def test_a_kill_at_forty_moments(folder: Path, command: str) -> None:
    dice = random.Random(command)
    for _ in range(40):
        kill(folder, command, dice.uniform(0.1, SECONDS))


def listen_to(number: int) -> None:
    """Ignore interrupts, as a job in the background does, but not this signal, which `nohup` has one ignore."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("words", "number"),
    [(("hunt", "--no-operators", "--out", "out"), signal.SIGTERM), (COMMANDS["minify"], signal.SIGHUP)],
    ids=["hunt", "minify"],
)
def test_whoever_is_told_to_stop_keeps_what_it_has_and_leaves_nothing_behind(folder, words, number):
    """As `timeout` tells it, a job that is cancelled, a terminal that is closed; interrupts are ignored there."""
    mark, room = uuid.uuid4().hex, folder / "room"
    room.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchparity", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EDGES_MARK": mark, "TMPDIR": str(room)},
        preexec_fn=lambda: listen_to(number),
    )
    while not (folder / "out").exists() and process.poll() is None:
        time.sleep(0.1)
    time.sleep(2.0)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 130, (process.returncode, err)
    assert "Traceback" not in err, err
    assert gone(mark)
    assert [place.name for place in room.iterdir() if place.name.startswith("torchparity")] == []
