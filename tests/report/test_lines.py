from dataclasses import replace

from tests.report.samples import diagnosis

from torchparity.records import Failure, StageRun, Status
from torchparity.report.lines import five_lines


def test_the_five_lines_say_what_where_which_stage_the_script_and_the_page():
    assert five_lines(diagnosis()) == [
        (
            "DIFFERS",
            "model.py:make against inductor: output[0] differs in value [1, 2]: 1 became 3 "
            "(score 100, over 8 is no rounding), and 1 more",
        ),
        ("where", "add introduces the error  model.py:11 in forward: steps = x // 0.1"),
        ("stage", "inductor's lowering: div  (passes without the lowering of div)"),
        ("script", "runs/one/small/repro.py  (1 operation of 13, reproduced 3 of 3)"),
        ("page", "runs/one/index.html"),
    ]


def test_a_model_that_agrees_needs_two():
    found = diagnosis()
    same = replace(found.verdict, status=Status.SAME, reasons=("all 3 leaves agree",))
    assert five_lines(replace(found, verdict=same)) == [
        ("SAME", "model.py:make against inductor: all 3 leaves agree"),
        ("page", "runs/one/index.html"),
    ]


def test_what_is_missing_says_why():
    stages = (
        StageRun(name="check", ending="done"),
        StageRun(name="graph", ending="done"),
        StageRun(name="locate", ending="stopped", note="the budget is spent"),
        StageRun(name="minify", ending="skipped", note="the budget is spent"),
    )
    found = replace(diagnosis(), located=None, smallest=None, blame=None, stages=stages, ended="interrupted")
    lines = dict(five_lines(found))
    assert lines["where"] == "in graph 001_dynamo (13 operations); stopped: the budget is spent"
    assert lines["script"] == "skipped: the budget is spent"
    assert lines["stage"] == "not looked for: interrupted"


def test_an_exception_is_said_in_one_line():
    found = diagnosis()
    failure = Failure(type="RuntimeError", message="m", stage="compile")
    verdict = replace(found.verdict, failure=failure, leaves=(), reasons=("inductor raises\n" + "x" * 500,))
    text = dict(five_lines(replace(found, verdict=verdict)))["DIFFERS"]
    assert "\n" not in text
    assert text.endswith("…")
    assert len(text) < 250


def test_a_model_that_could_not_be_checked():
    stages = (StageRun(name="check", ending="found nothing", note="the model raises ValueError"),)
    found = replace(diagnosis(), verdict=None, stages=stages, ended="the model could not be checked")
    assert five_lines(found)[0] == ("UNKNOWN", "model.py:make against inductor: the model raises ValueError")


def test_an_interrupted_script_was_not_run():
    found = diagnosis()
    small = replace(found.smallest, reproduced=(0, 0), complete=False)
    text = dict(five_lines(replace(found, smallest=small, interrupted=True)))["script"]
    assert text.endswith("(1 operation of 13, not run yet: interrupted, stopped early)")
