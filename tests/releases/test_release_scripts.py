"""What the end of a process says; and that nothing of it outlives it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from torchparity.records import ReleaseState
from torchparity.releases.scripts import Ended, meaning_of, plain_environment, run_process, run_script

TRACE = 'Traceback (most recent call last):\n  File "repro.py", line 3, in <module>\n    assert x\n'
CHAINED = f"{TRACE}ValueError: first\n\nThe above exception was the direct cause:\n\n{TRACE}"
FAILS, WORKS, UNKNOWN = ReleaseState.FAILS, ReleaseState.WORKS, ReleaseState.UNKNOWN
# exit code, output -> answer, name of the failure, what is told
ENDINGS = {
    "works": (0, "", WORKS, "", ""),
    "asserts": (1, f"{TRACE}AssertionError\n", FAILS, "AssertionError", "AssertionError"),
    "raises while it handles": (
        1,
        f"{CHAINED}torch._inductor.exc.InductorError: LoweringException: x\n  target: aten.add\n\nSet TORCH_LOGS\n",
        FAILS,
        "InductorError",
        "LoweringException: x",
    ),
    "says differs": (1, "leaf\nDIFFERS: 1 of 2 leaves\n", FAILS, "", "DIFFERS: 1 of 2 leaves"),
    "crashes": (-11, "", FAILS, "SIGSEGV", "dies of SIGSEGV"),
    "crashes in a shell": (134, "", FAILS, "SIGABRT", "dies of SIGABRT"),
    "killed": (-9, "", UNKNOWN, "", "was killed by SIGKILL, perhaps for want of memory"),
    "terminated": (-15, "", UNKNOWN, "", "was killed by SIGTERM"),
    "no module": (1, f"{TRACE}ModuleNotFoundError: No module named 'x'\n", UNKNOWN, "", "No module named 'x'"),
    "no name": (1, f"{TRACE}AttributeError: module 'torch.nn' has no attribute 'x'\n", UNKNOWN, "", "lacks what"),
    "no operator": (1, f"{TRACE}AttributeError: '_OpNamespace' 'aten' object has no", UNKNOWN, "", "lacks what"),
    "another attribute": (1, f"{TRACE}AttributeError: 'int' object has no\n", FAILS, "AttributeError", "'int'"),
    "no compiler": (1, f"{TRACE}torch._inductor.exc.InvalidCxxCompiler: No working", UNKNOWN, "", "lacks what"),
    "no Python": (1, '  File "r.py", line 1\n    x x\nSyntaxError: invalid syntax\n', UNKNOWN, "", "SyntaxError"),
    "unknown": (125, "UNKNOWN: no GPU\n", UNKNOWN, "", "exits with 125, which says neither: UNKNOWN: no GPU"),
    "usage": (2, "", UNKNOWN, "", "exits with 2, which says neither"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_an_ending_says(ending):
    code, output, state, error, told = ENDINGS[ending]
    found = meaning_of(Ended(exit_code=code, output=output, seconds=1.0), seconds=300.0)
    assert (found.state, found.error) == (state, error)
    assert told in found.why


def test_too_slow_is_no_answer():
    found = meaning_of(Ended(exit_code=-9, output="", seconds=5.0, late=True), seconds=5.0)
    assert (found.state, found.why) == (UNKNOWN, "takes longer than 5 s")


def test_a_state_has_no_truth_value():
    with pytest.raises(TypeError, match="no truth value"):
        bool(WORKS)


def test_all_that_a_late_process_has_started_is_ended(tmp_path):
    """Also what left its group, and what ignores a request to end."""
    script = tmp_path / "hang.sh"
    script.write_text(
        f"echo started; trap '' TERM; sleep 97 & echo $! > {tmp_path}/near\n"
        f"setsid sh -c 'echo $$ > {tmp_path}/far; sleep 98' & sleep 99\n"
    )
    began = time.monotonic()
    ended = run_process(["/bin/sh", str(script)], seconds=0.5, environment=plain_environment())
    assert ended.late
    assert ended.output == "started\n"
    assert time.monotonic() - began < 8
    for name in ("near", "far"):
        assert not is_alive(int((tmp_path / name).read_text()))


def is_alive(pid):
    """Tell whether a process runs; one that has ended may still wait to be noticed by its parent."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_script_runs_apart_from_our_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/the/users")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'PYTHONPATH' in os.environ)\n"
        "print('x' * 100000)\nprint('é', sys.stdin.read() == '')\n"
    )
    ended = run_script(script, sys.executable, seconds=60)
    assert ended.exit_code == 0
    assert ended.output.endswith("é True\n")
    assert len(ended.output) <= 6000
    script.write_text(script.read_text().replace("print('x' * 100000)\n", ""))
    cache, foreign = run_script(script, sys.executable, seconds=60).output.splitlines()[0].split()
    assert cache != "/the/users"
    assert foreign == "False"
    assert not Path(cache).exists()
