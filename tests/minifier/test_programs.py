"""Programs in workers: judged, made small, shown by a script; what kills a worker or never ends is an answer."""

import os
import subprocess
import sys

import pytest

from torchparity import Status
from torchparity.hunting.jobs import answer_of, request_of
from torchparity.minifier.programs import Asking
from torchparity.programs.script import HANGS
from torchparity.records import Signature
from torchparity.request import request_for
from torchparity.workers.outcome import Ending, Outcome
from torchparity.workers.pool import Pool

EAGER = request_for("check", {"backend": "eager"})
HEAD = "import os, time, torch\n\ndef program(a):\n    b = a.cos()\n"
TAIL = "\n    return b * a\n\ndef make():\n    return program, (torch.ones(2),)\n"
WRONG = f"{HEAD}    a = a + torch.compiler.is_compiling(){TAIL}"
CRASHES = f"{HEAD}    a = a + (os.abort() if torch.compiler.is_compiling() else 1){TAIL}"
REFUSED = f"{HEAD}    raise ValueError('never'){TAIL}"
RIGHT = f"{HEAD}    a = a + 1{TAIL}"
NOT_PYTHON = "def make(:\n"


@pytest.fixture(scope="module")
def asking(tmp_path_factory):
    with Pool(workers=1, preload=("torchparity.minifier.programs",)) as pool:
        yield Asking(pool, tmp_path_factory.mktemp("asked"))


def test_a_program_is_judged(asking):
    verdict = asking.verdict(WRONG, EAGER)
    assert verdict.status is Status.DIFFERS
    assert asking.ways(WRONG, EAGER) == {Signature(kind="value")}
    assert asking.ways(RIGHT, EAGER) == set()
    assert asking.verdict(NOT_PYTHON, EAGER) is None
    assert asking.ways(REFUSED, EAGER) == set()


def test_a_process_that_dies_in_eager_after_the_compiled_code_has_run_says_so(asking):
    later = WRONG.replace(
        "    b = a.cos()", "    if not torch.compiler.is_compiling() and stale(): os.abort()\n    b = a.cos()"
    )
    later = later.replace(
        "def program", "def stale():\n    return bool(torch._dynamo.utils.counters['stats'])\n\ndef program"
    )
    verdict = asking.verdict(later, EAGER)
    assert verdict.status is Status.UNKNOWN
    assert "no answer: the process is killed by SIGABRT during" in verdict.reasons[0]
    assert "the compiled model had run in it" in verdict.reasons[0]


def test_the_first_that_fails_so_is_found_past_those_that_die(asking):
    wanted = {Signature(kind="value")}
    assert asking.first([RIGHT, NOT_PYTHON, CRASHES, REFUSED, WRONG, RIGHT], EAGER, wanted) == 4
    assert asking.first([RIGHT, NOT_PYTHON, CRASHES], EAGER, wanted) is None
    crash = asking.ways(CRASHES, EAGER)
    assert {signature.kind for signature in crash} == {"crashes"}
    assert asking.first([RIGHT, WRONG, CRASHES, WRONG], EAGER, crash) == 2


def test_a_program_is_made_small_with_the_least_that_shows_it(asking):
    smaller = asking.make_small(WRONG, request_for("check", {}), {Signature(kind="value")})
    assert "cos" not in smaller.text
    assert "is_compiling" in smaller.text
    assert len(smaller.text.strip().splitlines()) < len(WRONG.strip().splitlines())
    assert asking.make_small(RIGHT, EAGER, {Signature(kind="value")}) is None


@pytest.mark.parametrize("text", [pytest.param(WRONG, marks=pytest.mark.slow), CRASHES])
def test_a_script_shows_what_differs_and_passes_where_nothing_is_compiled(asking, text, tmp_path):
    verdict = asking.verdict(text, EAGER)
    shown = asking.shown_by(text, verdict, EAGER)
    assert shown is not None
    assert shown.beyond_default
    script = tmp_path / "repro.py"
    script.write_text(shown.text)
    fails = subprocess.run([sys.executable, script], check=False, capture_output=True)
    assert fails.returncode == 1
    passes = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    assert subprocess.run([sys.executable, script], check=False, env=passes).returncode == 0
    assert "torchparity" not in shown.text


@pytest.mark.slow
def test_a_compiler_that_never_ends_is_a_find_and_has_a_script(asking, monkeypatch):
    monkeypatch.setattr("torchparity.programs.script.HANG_SECONDS", 15)
    phase = '{"run": 3, "runs": 5, "name": "17", "candidate": true}'
    answer = answer_of(Outcome(ending=Ending.TIMED_OUT, phase=phase, seconds=120.0))
    assert (answer["status"], answer["kind"], answer["severity"]) == ("differs", HANGS, "fails")
    text = WRONG.replace("torch.compiler.is_compiling()", "(time.sleep(600) if torch.compiler.is_compiling() else 1)")
    shown = asking.script_showing(text, Signature(**answer["signatures"][0]), [], EAGER)
    assert shown is not None
    assert "Timeout" in shown.output


@pytest.mark.parametrize("ending", [Ending.EXITED, Ending.KILLED, Ending.TIMED_OUT, Ending.OUT_OF_MEMORY])
def test_who_dies_outside_of_the_candidate_is_no_find(ending):
    phase = '{"run": 1, "runs": 5, "name": "17", "candidate": false}'
    answer = answer_of(Outcome(ending=ending, phase=phase, seconds=3.0, exit_code=1, signal=None))
    assert answer["status"] == "error"


def test_a_hunt_judges_with_exact_data():
    assert request_of({"dynamic": True}).exact
    assert request_of({"dynamic": True}).dynamic is True
