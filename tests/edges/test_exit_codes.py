"""What each command exits with in each situation, through the real command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warm import command_line as run

MODEL = '''
import ctypes, os, sys
import torch


class Ending(torch.nn.Module):
    """Ends its process in its own way when it is called."""

    def __init__(self, end):
        super().__init__()
        self.end = end

    def forward(self, x):
        self.end()
        return x + 1


def clean():
    return torch.nn.Linear(3, 3), (torch.randn(2, 3),)


def points():
    return torch.sin, (torch.randn(300),)


def leaves():
    return Ending(lambda: sys.exit(0)), (torch.randn(3),)


def leaves_with_1():
    return Ending(lambda: sys.exit(1)), (torch.randn(3),)


def vanishes():
    return Ending(lambda: os._exit(0)), (torch.randn(3),)


def crashes():
    return Ending(lambda: ctypes.string_at(0)), (torch.randn(3),)


def raises():
    return Ending(lambda: 1 / 0), (torch.randn(3),)


def a_dict():
    return {"x": torch.randn(3)}


def a_tuple():
    return torch.randn(3), torch.randn(3)


def lazy():
    return torch.nn.LazyLinear(3), (torch.randn(2, 3),)


def meta():
    return torch.nn.Linear(3, 3, device="meta"), (torch.randn(2, 3, device="meta"),)


def scripted():
    return torch.jit.script(torch.nn.Linear(3, 3)), (torch.randn(2, 3),)


def exported():
    x = torch.randn(2, 3)
    return torch.export.export(torch.nn.Linear(3, 3), (x,)).module(), (x,)
'''
FAULTY = """
import ctypes, os
import torch
from torch._dynamo import register_backend


@register_backend
def off_by_one(graph, inputs):
    return lambda *args: [value + 1 for value in graph(*args)]


@register_backend
def crashing(graph, inputs):
    return lambda *args: ctypes.string_at(0)


@register_backend
def vanishing(graph, inputs):
    return lambda *args: os._exit(0)


def make():
    return torch.nn.Linear(3, 3), (torch.randn(2, 3),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("edges")
    (place / "model.py").write_text(MODEL)
    (place / "faulty.py").write_text(FAULTY)
    for package, text in (("leaving", "import sys; sys.exit(9)"), ("raising", "raise ValueError('no')"), ("good", "")):
        (place / package).mkdir()
        (place / package / "__init__.py").write_text(text)
        (place / package / "inner.py").write_text("from . import other\n" + MODEL)
        (place / package / "other.py").write_text("")
    captured = run(place, "capture", "model.py:clean", "--backend", "aot_eager", "--out", "cases")
    assert captured.returncode == 0, captured.stderr
    return place


AOT = ("--backend", "aot_eager", "--quiet")
# situation -> (words, exit code, what it says)
TABLE = {
    "same": (("check", "model.py:clean", *AOT), 0, "SAME"),
    "differs": (("check", "faulty.py:make", "--backend", "off_by_one", "-q"), 1, "DIFFERS"),
    "the model leaves": (("check", "model.py:leaves", *AOT), 125, "raises SystemExit: 0"),
    "the model leaves with 1": (("check", "model.py:leaves_with_1", *AOT), 125, "raises SystemExit: 1"),
    "the model vanishes": (("check", "model.py:vanishes", *AOT), 125, "past every handler"),
    "the model crashes": (("check", "model.py:crashes", *AOT), 125, "died of SIGSEGV"),
    "the model crashes here": (("check", "model.py:crashes", *AOT, "--no-isolate"), 125, "check --isolate` runs it"),
    "the compiled model crashes": (("check", "faulty.py:make", "--backend", "crashing", "-q"), 1, "killed by SIGSEGV"),
    "the compiled model vanishes": (("check", "faulty.py:make", "--backend", "vanishing", "-q"), 1, "DIFFERS"),
    "the model vanishes in capture": (("capture", "model.py:vanishes", *AOT[:2]), 125, "past every handler"),
    "the model leaves in explain": (("explain", "model.py:leaves", *AOT), 125, "SystemExit"),
    "the model raises": (("check", "model.py:raises", *AOT), 125, "ZeroDivisionError"),
    "a package leaves": (("check", "leaving.inner:clean", *AOT), 2, "raises SystemExit: 9"),
    "a package raises": (("check", "raising.inner:clean", *AOT), 2, "raises ValueError: no"),
    "no module": (("check", "nowhere.inner:clean", *AOT), 2, "there is no module"),
    "a file of a package": (("check", "good/inner.py:clean", *AOT), 2, "name it as good.inner:NAME"),
    "a module of a package": (("check", "good.inner:clean", *AOT), 0, "SAME"),
    "a dict": (("check", "model.py:a_dict", *AOT), 2, "gives a dict, not a model"),
    "a tuple": (("check", "model.py:a_tuple", *AOT), 2, "gives a tuple, not a model"),
    "lazy": (("check", "model.py:lazy", *AOT), 2, "not made yet"),
    "meta": (("check", "model.py:meta", *AOT), 2, "no numbers to compare"),
    "scripted": (("check", "model.py:scripted", *AOT), 125, "does not take this model"),
    "exported": (("check", "model.py:exported", *AOT), 0, "SAME"),
    "a seed beyond 64 bits": (("check", "model.py:clean", "--seed", str(2**64)), 2, "is no seed"),
    "nothing to locate": (("locate", "model.py:clean", *AOT), 3, "nothing fails"),
    "nothing to make small": (("minify", "model.py:clean", *AOT, "--out", "small"), 3, "nothing fails"),
    "nothing to blame": (("blame", "model.py:clean", *AOT), 3, "nothing fails"),
    "a limit of nothing": (("check", "model.py:clean", "--timeout", "5"), 2, "limits nothing"),
    "memory of nothing": (("check", "model.py:clean", "--memory", "5"), 2, "limits nothing"),
    "a setting of another kind": (("check", "model.py:clean", "--config", "inductor.max_fusion_size=abc"), 2, "64"),
    "autocast to float64": (("check", "model.py:clean", "--autocast", "float64"), 2, "is not a dtype for autocast"),
    "too little compiled": (("check", "model.py:clean", *AOT, "--allow-eager", "--require-compiled", "2"), 2, "share"),
    "capture into a file": (("capture", "model.py:clean", "--out", "model.py"), 2, "cannot be a folder"),
    "capture into nowhere": (("capture", "model.py:clean", "--out", "/proc/nowhere/x"), 2, "cannot be a folder"),
    "no bundle": (("show", "nowhere"), 2, "there is no bundle"),
    "no run": (("report", "cases"), 2, "holds no run"),
}


@pytest.mark.parametrize("situation", TABLE)
def test_what_a_command_exits_with(folder: Path, situation: str) -> None:
    words, code, told = TABLE[situation]

    ended = run(folder, *words)

    assert ended.returncode == code, ended.stdout + ended.stderr
    assert told in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_the_machine_lacks_is_no_verdict(folder: Path) -> None:
    ended = run(folder, "check", "model.py:points", "-q", "--fresh-cache", env={"CXX": "/nowhere/g++"})

    assert ended.returncode == 125
    assert "this machine lacks a C++ compiler" in ended.stdout


def test_a_compiler_that_fails_on_everything_is_the_machines(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\ncase "$*" in *--version*) echo "g++ 13.2.0";; *) exit 1;; esac\n')
    broken.chmod(0o755)

    ended = run(folder, "check", "model.py:points", "-q", "--fresh-cache", env={"CXX": str(broken)})

    assert ended.returncode == 125, ended.stdout
    assert "this machine lacks" in ended.stdout


def test_a_closed_pipe_is_no_error_and_changes_no_verdict(folder: Path) -> None:
    command = f"{sys.executable} -m torchparity check model.py:clean --backend aot_eager -q"
    ended = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 0
    assert ended.stdout.startswith("SAME")
    assert ended.stderr == ""


def test_a_full_disk_is_no_verdict(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "torchparity", "check", "model.py:clean", *AOT]
        ended = subprocess.run(
            command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )

    assert ended.returncode == 125
    assert "could not be written" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_error_of_ours_is_no_answer_and_leaves_its_traceback(folder: Path) -> None:
    program = (
        "import sys, torchparity.report.terminal as terminal, torchparity.cli.main as main\n"
        "def broken(*args, **kwargs): raise KeyError('ours')\n"
        "main.render = broken\n"
        "sys.argv = ['torchparity', 'check', 'model.py:clean', '--backend', 'aot_eager', '-q']\n"
        "from torchparity.cli.start import main; main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )

    assert ended.returncode == 125
    assert "torchparity itself failed: KeyError" in ended.stderr
    assert "Traceback" not in ended.stderr
    place = Path(ended.stderr.rpartition("lies in ")[2].strip())
    assert "KeyError: 'ours'" in place.read_text()
    place.unlink()


@pytest.mark.parametrize("moment", [0.08, 0.2, 0.5, 1.5, 3.0])
def test_an_interrupt_is_told_from_the_first_instant(folder: Path, moment: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "torchparity", "check", "model.py:clean", *AOT],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    if process.returncode == 0:  # It was done before.
        assert out.startswith("SAME")
        return
    starting = moment < 0.1  # Python itself may still be, and then dies of the signal.
    assert process.returncode == 130 or (starting and process.returncode == -signal.SIGINT), err
    assert "Traceback" not in err or starting


def test_usage_errors_and_show_do_without_torch(folder: Path) -> None:
    program = (
        "import sys\n"
        "sys.argv = ['torchparity', *sys.argv[1:]]\n"
        "from torchparity.cli.start import begin\n"
        "try: begin()\n"
        "except SystemExit: print('torch' in sys.modules)\n"
    )
    for words in (
        ("check", "nowhere.py:clean"),
        ("check", "model.py:clean", "--steps", "-1"),
        ("show", "nowhere"),
        ("show", "cases/001_dynamo"),
        ("run", "nowhere"),
        ("report", "nowhere"),
        ("minify",),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.stdout.splitlines()[-1] == "False", (words, ended.stderr)


def test_a_narrow_table_keeps_kind_and_score(folder: Path) -> None:
    ended = run(folder, *TABLE["differs"][0], env={"COLUMNS": "40"})

    head = next(line for line in ended.stdout.splitlines() if line.startswith("leaf"))
    assert head.split() == ["leaf", "kind", "score"]
    assert all(len(line) <= 40 for line in ended.stdout.splitlines())


def test_a_pipe_is_as_wide_as_a_line(folder: Path) -> None:
    ended = run(folder, *TABLE["the model vanishes in capture"][0])
    told = run(folder, *TABLE["scripted"][0], env={"COLUMNS": None})

    assert "says which run ended it" in ended.stderr.splitlines()[-1]
    assert any(len(line) > 100 for line in told.stdout.splitlines())


def test_closed_standard_output_changes_no_code(folder: Path) -> None:
    command = f"{sys.executable} -m torchparity check model.py:clean --backend aot_eager -q >&-"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )

    assert ended.returncode == 0, ended.stderr
