"""Scripts in processes of their own: what they print, how that is cut, and a run that was made before."""

from __future__ import annotations

import time

import pytest

from torchparity.minifier.delivery import KEPT, OUTPUT, ColdRun, verified
from torchparity.minifier.rehearsal import Rehearsal
from torchparity.records import Signature

COMPILE_ERROR = Signature(kind="raises", error="CppCompileError")
# What a C++ compiler says of one wrong template.
NOISE = "error: expected primary-expression before 'float'\n" * 3000
FAILS = """
class CppCompileError(Exception):
    pass


raise CppCompileError("cc1plus says:\\n" + "note: in a template, which is in a template\\n" * 3000)
"""


@pytest.mark.parametrize("after", ["", NOISE])
def test_an_error_is_seen_however_much_its_compiler_says_after_it(after):
    run = ColdRun(
        exit_code=1, output=f"Traceback: \n  in f\nInductorError: CppCompileError: C++ compile error\n{after}"
    )
    assert run.shows(COMPILE_ERROR, plain=True)
    assert "CppCompileError: C++" in run.told(COMPILE_ERROR)
    assert len(run.told(COMPILE_ERROR)) <= OUTPUT


@pytest.mark.parametrize("error", ["", "ValueError"])
def test_of_what_names_no_error_the_end_is_told(error):
    run = ColdRun(exit_code=1, output=NOISE + "the end")
    assert run.told(Signature(kind="raises", error=error)).endswith("the end")
    assert len(run.told(Signature(kind="raises", error=error))) == OUTPUT


def test_a_script_whose_error_is_long_is_reproduced(tmp_path):
    script = tmp_path / "repro.py"
    script.write_text(FAILS)
    delivered = verified(script, FAILS, COMPILE_ERROR, plain=True, probes=None)
    assert delivered.reproduced == (3, 3)
    assert "CppCompileError: cc1plus says" in delivered.output
    assert len(delivered.output) <= OUTPUT < KEPT


def counted(folder):
    """Return a script that leaves a mark for each time it is run."""
    return f"import tempfile\ntempfile.mkstemp(dir={str(folder)!r})\nraise AssertionError('differs')\n"


def test_runs_that_were_made_before_are_the_three(tmp_path):
    (tmp_path / "marks").mkdir()
    text, value = counted(tmp_path / "marks"), Signature(kind="value")
    rehearsal = Rehearsal(None)
    rehearsal.begin(text)
    rehearsal.begin("raise SystemExit(5)")  # One is enough.
    script = tmp_path / "repro.py"
    script.write_text(text)
    delivered = verified(script, text, value, plain=True, probes=None, before=rehearsal.of(text))
    assert delivered.reproduced == (3, 3)
    assert len(list((tmp_path / "marks").iterdir())) == 3
    rehearsal.end()


def test_a_run_of_another_text_is_stopped_and_counts_for_nothing():
    rehearsal = Rehearsal(None)
    rehearsal.begin("import time\ntime.sleep(100)")
    deadline = time.monotonic() + 20
    while not rehearsal._started and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not rehearsal.of("another")
    assert [process.wait(20) < 0 for process in rehearsal._started] == [True] * len(rehearsal._started)


def test_what_fails_in_another_way_when_it_is_run_again_is_told(tmp_path):
    script = tmp_path / "repro.py"
    script.write_text("raise ValueError('another')")
    assert verified(script, "", COMPILE_ERROR, plain=True, probes=None).reproduced == (0, 3)


def test_a_crash_is_shown_by_whichever_signal_ends_a_process_whose_memory_is_destroyed():
    pinned = Signature(kind="crashes", error="SIGSEGV")
    for name in ("SIGABRT", "SIGSEGV", "SIGBUS"):
        assert ColdRun(exit_code=1, output=f"AssertionError: {name}").shows(pinned, plain=True)
    assert not ColdRun(exit_code=1, output="AssertionError: SIGFPE").shows(pinned, plain=True)
    assert not ColdRun(exit_code=1, output="AttributeError: backward").shows(pinned, plain=True)
    divided = Signature(kind="crashes", error="SIGFPE")
    assert ColdRun(exit_code=1, output="AssertionError: SIGFPE").shows(divided, plain=True)
    assert not ColdRun(exit_code=1, output="AssertionError: SIGABRT").shows(divided, plain=True)
