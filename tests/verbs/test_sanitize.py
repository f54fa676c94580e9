"""Runs under NVIDIA's sanitizer. The tool is faked at our own seam: a program of its name runs what it is given."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchparity import UsageError
from torchparity.verbs import sanitize
from torchparity.verbs.sanitize import Violation, read

REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at double+0x120 in careless.py:8
=========     by thread (100,0,0) in block (0,0,0)
=========     Access to 0x7fdea4800390 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fdea4800200 of size 400 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch [0x1da3] in __triton_launcher.cpython-312-x86_64-linux-gnu.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at double+0x120 in careless.py:8
=========     by thread (101,0,0) in block (0,0,0)
=========     Access to 0x7fdea4800394 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7fdea4800200 of size 400 bytes
=========
========= Invalid __global__ read of size 16 bytes
=========     at void gather<float, 4>(const float *)+0x50
=========     by thread (3,0,0) in block (7,0,0)
=========     Access to 0x7fdea4900000 is misaligned
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call.
========= Target application returned an error
========= ERROR SUMMARY: 4 errors
"""
MODEL = """
import os
import torch
from pathlib import Path


def wave(x):
    return x.sin() + 1


def make():
    Path({ran!r}, str(os.getpid())).touch()
    return wave, (torch.ones(5),)
"""


def test_a_report_is_read():
    write, load = read(REPORT)
    assert write == Violation(
        what="Invalid __global__ write of size 4 bytes",
        kernel="double",
        place="careless.py:8",
        outside="1 bytes after an allocation of 400 bytes",
        times=2,
    )
    assert load.kernel == "void gather<float, 4>(const float *)"
    assert (load.place, load.outside, load.times) == ("", "", 1)


def test_a_clean_report_holds_nothing():
    assert read("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def place_tool(folder: Path, report: str, *, runs: bool = True) -> dict[str, str]:
    """Put a program of the tool's name first on the path: it runs its command, and leaves a report."""
    tool = folder / sanitize.SANITIZER
    tool.write_text(
        f"#!{sys.executable}\n"
        "import subprocess, sys\n"
        "log, command = sys.argv[4], sys.argv[5:]\n"
        f"code = subprocess.run(command).returncode if {runs} else 7\n"
        f"open(log, 'w').write({report!r})\n"
        "sys.exit(code)\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def command(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchparity", *words], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["check", pytest.param("run", marks=pytest.mark.slow)])
def test_what_it_sees_differs(tmp_path, verb):
    ran = made(tmp_path / "ran")
    (tmp_path / "model.py").write_text(MODEL.format(ran=str(ran)))
    environment = place_tool(tmp_path, REPORT)
    words = ["check", "model.py:make", "--backend", "aot_eager"]
    if verb == "run":
        assert command(tmp_path, environment, "capture", *words[1:]).returncode == 0
        (bundle,) = [entry for entry in (tmp_path / "cases").iterdir() if "forward" in entry.name]
        words = ["run", str(bundle)]
    for process in ran.iterdir():
        process.unlink()
    done = command(tmp_path, environment, *words, "--sanitize", "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    told = " ".join(done.stdout.split())
    assert (
        "compute-sanitizer sees: Invalid __global__ write of size 4 bytes of double at careless.py:8, and 1 more"
        in told
    )
    assert "out_of_bounds" in told
    assert len(list(ran.iterdir())) == (2 if verb == "check" else 0)  # The check itself, and the run that is watched.


def test_where_it_sees_nothing_that_is_said(tmp_path):
    (tmp_path / "model.py").write_text(MODEL.format(ran=str(made(tmp_path / "ran"))))
    environment = place_tool(tmp_path, "========= ERROR SUMMARY: 0 errors\n")
    done = command(tmp_path, environment, "check", "model.py:make", "--backend", "aot_eager", "--sanitize", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compute-sanitizer sees nothing wrong in one run" in done.stdout


def test_where_it_cannot_run_the_model_there_is_no_answer(tmp_path):
    (tmp_path / "model.py").write_text(MODEL.format(ran=str(made(tmp_path / "ran"))))
    environment = place_tool(tmp_path, "", runs=False)
    done = command(tmp_path, environment, "check", "model.py:make", "--backend", "aot_eager", "--sanitize", "-q")
    assert done.returncode == 125, done.stdout + done.stderr
    assert "the model does not run" in done.stderr


def test_where_it_is_missing_that_is_said_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="is not installed here"):
        sanitize.require_sanitizer()
