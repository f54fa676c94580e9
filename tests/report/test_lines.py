from dataclasses import replace

from tests.report.samples import diagnosis

from torchparity.records import Failure, Kind, Mismatch, StageRun, Status
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


def test_a_kind_is_not_said_twice():
    found = diagnosis()
    mismatch = Mismatch(kind=Kind.MUTATION, detail="mutation", expected="written to", actual="left as it was")
    leaf = replace(found.verdict.leaves[0], mismatches=(mismatch,), score=0.0)
    text = dict(five_lines(replace(found, verdict=replace(found.verdict, leaves=(leaf,)))))["DIFFERS"]
    assert text.endswith("output[0] differs in mutation written to became left as it was")


def test_graphs_that_were_not_judged_are_not_said_to_agree():
    stages = (StageRun(name="check", ending="done"), StageRun(name="graph", ending="skipped", note="no time"))
    found = replace(diagnosis(), graph=None, located=None, stages=stages, ended="the graphs were not judged")
    assert dict(five_lines(found))["where"] == "not known; skipped: no time"
    agree = (stages[0], StageRun(name="graph", ending="found nothing", note="no graph of it fails"))
    found = replace(found, stages=agree, ended="no graph of the model fails by itself")
    assert dict(five_lines(found))["where"] == "in no graph by itself; found nothing: no graph of it fails"


def test_a_stage_that_named_nothing_and_a_script_that_does_not_fail_say_so():
    found = diagnosis()
    stages = tuple(StageRun(name=name, ending="done") for name in ("check", "graph", "locate", "minify"))
    located = replace(found.located, culprit=None)
    small = replace(found.smallest, reproduced=(0, 3))
    lines = dict(five_lines(replace(found, located=located, smallest=small, stages=stages)))
    assert lines["where"] == "in graph 001_dynamo (13 operations); locate named nothing"
    assert "does NOT reproduce: 0 of 3" in lines["script"]
