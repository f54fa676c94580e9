"""Questions with judges that only read the bundle: pinning, other failures, flaky ones, budgets, asking ahead."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import pytest
import torch
from tests.minifier.judges import questions_of, reduced, whole_of

import torchparity
from torchparity.compilers.written import SourceBackend
from torchparity.judge.reading import Reading
from torchparity.minifier.answers import Answer
from torchparity.minifier.gate import Gate
from torchparity.minifier.log import NAME, Log
from torchparity.minifier.questions import Budget, BudgetSpent, Following
from torchparity.records import Signature
from torchparity.records.signature import function_of
from torchparity.records.wire import plain_data

VALUE, STRIDE = Signature(kind="value"), Signature(kind="stride")


class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(20):
            x = torch.sin(x) if place == 6 else torch.cos(x) if place == 13 else torch.relu(x) + place
        return x


@pytest.fixture(scope="module")
def case():
    (case, *_) = torchparity.capture(Chain(), (torch.randn(4, 6),), backend="aot_eager")
    return case


def text_of(path):
    return (path / "repro.py").read_text()


def calls(path, *names):
    return all(f"torch.{name}(" in text_of(path) for name in names)


def judge_both(path):
    if calls(path, "sin", "cos"):
        return Answer(signatures=(VALUE,))
    return Answer(signatures=(STRIDE,)) if calls(path, "cos") else Answer(same=True)


def test_another_failure_is_kept_and_not_followed(case, tmp_path):
    questions = questions_of(case, tmp_path, judge_both)
    gate = reduced(questions)
    assert gate.current.compute_nodes == 2
    (kept,) = questions.others.glob("*")
    assert kept.name.startswith("stride_")
    assert calls(kept, "cos")
    assert not list((tmp_path / "queries").glob("*"))
    assert torchparity.read_bundle(tmp_path / "case").compute_nodes == 2


def test_errors_are_the_same_only_from_the_same_function(case, tmp_path):
    def judge(path):
        frame = "lowering.py full" if calls(path, "sin") else "ir.py create"
        return Answer(signatures=(Signature(kind="raises", error="TypeError", frame=frame),))

    gate = reduced(questions_of(case, tmp_path, judge))
    assert "torch.sin" in gate.current.graph_module.code
    assert function_of("/a/b/torch/_inductor/lowering.py:123 full") == "lowering.py full"


def test_a_failure_that_comes_and_goes_is_asked_about_as_often_as_it_takes(case, tmp_path):
    rolls = itertools.count()

    def judge(path):
        if calls(path, "sin") and next(rolls) % 2 == 0:
            return Answer(signatures=(VALUE,), repeats=(1, 2))
        return Answer(same=True)

    questions = questions_of(case, tmp_path, judge)
    gate = reduced(questions)
    assert whole_of(questions).follower().repeats == (2, 4)
    assert gate.current.compute_nodes == 1
    assert "torch.sin" in gate.current.graph_module.code


@pytest.mark.parametrize("budget", [Budget(queries=5), Budget(seconds=0.0)])
def test_a_budget_ends_it_with_the_best_so_far(case, tmp_path, budget):
    questions = questions_of(case, tmp_path, judge_both, budget=budget)
    gate = Gate(Following(questions, VALUE))
    with pytest.raises(BudgetSpent):
        reduced(questions, gate)
    assert gate.best is not None
    assert questions.queries <= 5


def test_asking_ahead_changes_nothing_but_the_time(case, tmp_path):
    together, most = 0, 0
    lock = threading.Lock()

    def judge(path):
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.1)
        answer = judge_both(path)
        with lock:
            together -= 1
        return answer

    alone = reduced(questions_of(case, tmp_path / "alone", judge))
    assert most == 1
    ahead = reduced(questions_of(case, tmp_path / "ahead", judge, width=3))
    assert most > 1
    assert ahead.current.key == alone.current.key


def test_what_the_log_answers_is_not_asked(case, tmp_path):
    first = reduced(questions_of(case, tmp_path, judge_both))

    def never(path):
        raise AssertionError("asked again")

    again = reduced(questions_of(case, tmp_path, never))
    assert again.current.key == first.current.key


def test_a_line_that_was_cut_short_is_forgotten(tmp_path):
    log = Log(tmp_path / NAME)
    log.write("start", case="x", check=None, seconds=1.0, memory=None, free=1)
    log.write("answered", key="k", answer=plain_data(Answer(same=True)))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"event":"answered","key":"half')
    again = Log(tmp_path / NAME)
    assert list(again.answers) == ["k"]
    again.write("ended")
    assert [entry["event"] for entry in again.entries()] == ["start", "answered", "ended"]


def test_no_answer_is_never_followed(case, tmp_path):
    def judge(path):
        return Answer(signatures=(VALUE,)) if calls(path, "sin", "cos") else Answer()

    gate = reduced(questions_of(case, tmp_path, judge))
    assert gate.current.compute_nodes == 2
    assert not gate.passing
    assert gate.unanswered > 0


def test_a_backend_that_came_with_a_bundle_stays_with_its_parts(case, tmp_path):
    backend = SourceBackend(imports=("import never_imported_here",), expression="'registered_there'")
    carried = replace(
        case, request=replace(case.request, backend=backend), files={"never_imported_here.py": "", "beside.py": ""}
    )
    questions = questions_of(carried, tmp_path, judge_both)
    gate = reduced(questions)
    assert set(questions.workshop.case_of(gate.current).files) == {"never_imported_here.py", "beside.py"}
    assert (tmp_path / "case" / "never_imported_here.py").is_file()


def test_an_answer_counts_for_the_failure_that_was_followed_when_it_was_asked(case, tmp_path):
    over = threading.Event()

    def judge(path):
        over.wait(60)
        return Answer(signatures=(VALUE,))

    questions = questions_of(case, tmp_path, judge)
    gate = Gate(Following(questions, VALUE))
    asked = gate.asker.ask(questions.workshop.whole)
    gate.follow(Following(questions, STRIDE))
    over.set()
    assert asked.result(60) is Reading.FAILS
    assert not gate.fails(questions.workshop.whole)
    assert questions.queries == 1


def test_every_answer_is_read_as_what_it_says_of_the_failure(case, tmp_path):
    answers = iter([Answer(signatures=(STRIDE, VALUE)), Answer(signatures=(STRIDE,)), Answer(same=True), Answer()])
    questions = questions_of(case, tmp_path, lambda path: next(answers))
    follower, extractor = Following(questions, VALUE), questions.workshop.extractor
    readings = [follower.ask(extractor.part([node])).result(60) for node in extractor.compute[:4]]
    assert readings == [Reading.FAILS, Reading.OTHERWISE, Reading.PASSES, Reading.NO_ANSWER]


def test_a_case_that_does_not_fail_is_refused(case, tmp_path):
    with pytest.raises(torchparity.UsageError, match="does not fail here: same"):
        whole_of(questions_of(case, tmp_path, lambda path: Answer(same=True))).follower()
