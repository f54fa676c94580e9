"""The caller's side of a minification, with workers that are threads here: what it believes, begins again, refuses."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import torchparity
from torchparity import ResourceError, Status, UsageError
from torchparity.minifier import driver
from torchparity.minifier.delivery import Delivered
from torchparity.minifier.driver import start_minify
from torchparity.minifier.job import Job
from torchparity.minifier.questions import Budget
from torchparity.minifier.searcher import SEARCH_JOB, search_job
from torchparity.records import Failure, Kind, LeafReport, Mismatch, Verdict
from torchparity.records.wire import plain_data
from torchparity.workers.outcome import Ending, Outcome

OPERATIONS = 8
WHOLE = "00001"  # What is asked about first.
SAME = Verdict(status=Status.SAME, reasons=("as eager",))
RAISES = Verdict(
    status=Status.DIFFERS, reasons=("raises",), failure=Failure(type="TypeError", message="", stage="compile")
)


class Chain(torch.nn.Module):
    """Operations that differ in a number; that which adds 1.5 is wrong."""

    def forward(self, x):
        for place in range(OPERATIONS):
            x = x + 0.25 * place
        return x


@pytest.fixture(scope="module")
def case():
    (case, *_) = torchparity.capture(Chain(), (torch.randn(4, 6),), backend="aot_eager")
    return case


@pytest.fixture(autouse=True)
def no_cold_runs(monkeypatch):
    delivered = Delivered(text="", plain=False, output="", reproduced=(3, 3))
    monkeypatch.setattr(driver, "deliver", lambda *args, **kwargs: delivered)


def judge(path):
    added = [float(number) for number in re.findall(r"= \w+ \+ ([\d.]+)", (path / "repro.py").read_text())]
    if 1.5 not in added:
        return SAME
    mismatch = Mismatch(kind=Kind.VALUE, detail="")
    place = added.index(1.5) if path.name != WHOLE else 0
    facts = {"role": "output", "status": Status.DIFFERS, "dtype": "float32", "shape": (4, 6)}
    leaf = LeafReport(path=f"output[{place}]", mismatches=(mismatch,), **facts)
    return Verdict(status=Status.DIFFERS, reasons=("differs",), leaves=(leaf,))


class Threads:
    """A pool whose searches run in threads of this process; `whole` is what the whole case is found to do."""

    workers, probes = 2, None

    def __init__(self, whole=None, *, late=False):
        self.whole, self.late = whole, late
        self.held, self.deaths, self.searches = [], [], 0
        self.threads = ThreadPoolExecutor()

    def submit(self, job, payload, *, limits=None, on_phase=None, aside=False):
        payload = json.loads(json.dumps(payload))
        if job == SEARCH_JOB:
            self.searches += 1
            return self.threads.submit(self.search, payload)
        answer, path = Future(), Path(payload["folder"])
        verdict = self.whole if self.whole is not None and path.name == WHOLE else judge(path)
        outcome = Outcome(ending=Ending.RETURNED, value=json.loads(json.dumps({"verdict": plain_data(verdict)})))
        self.held.append((answer, outcome))
        if not (self.late and path.name == WHOLE):
            self.held.pop()
            answer.set_result(outcome)
        return answer

    def search(self, payload):
        if self.deaths:
            (Path(payload["folder"]) / "trying").write_text(self.deaths.pop())
            return Outcome(ending=Ending.KILLED, signal=11)
        return Outcome(ending=Ending.RETURNED, value=search_job(payload, lambda phase: None))

    def answer_late(self, folder=None):
        while self.held:
            answer, outcome = self.held.pop()
            answer.set_result(outcome)


def minified(case, pool, folder, *, job=None, budget=None, found=None):
    return start_minify(
        case, job or Job(), pool, out=folder, budget=budget or Budget(), width=2, listen=None, found=found
    )


def events(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_what_is_wrong_alone_is_found_before_the_whole_case_has_answered(case, tmp_path):
    pool = Threads(late=True)
    small = minified(case, pool, tmp_path / "small", found=pool.answer_late)
    assert small.compute_nodes == 1
    assert small.signature.kind == "value"
    assert small.complete
    assert pool.searches == 1


@pytest.mark.parametrize("late", [False, True])
def test_where_the_whole_case_fails_in_another_way_that_is_what_is_followed(case, tmp_path, late):
    pool = Threads(RAISES, late=late)
    small = minified(case, pool, tmp_path / "small", found=pool.answer_late)
    assert (small.signature.kind, small.signature.error) == ("raises", "TypeError")
    assert small.compute_nodes == OPERATIONS


@pytest.mark.parametrize("late", [False, True])
def test_where_the_whole_case_does_not_fail_it_is_refused(case, tmp_path, late):
    pool = Threads(SAME, late=late)
    with pytest.raises(UsageError, match="does not fail here: same"):
        minified(case, pool, tmp_path / "small", found=pool.answer_late)


def test_what_is_still_asked_in_somebody_elses_pool_is_not_waited_for_and_not_believed(case, tmp_path):
    pool = Threads(late=True)
    small = minified(case, pool, tmp_path / "small", budget=Budget(queries=3))
    assert not small.complete
    assert pool.held
    pool.answer_late()
    log = events(tmp_path / "small")
    assert 1 not in [entry["query"] for entry in log if entry["event"] == "answered"]
    assert log[-1]["event"] == "ended"


def test_a_search_that_dies_is_begun_again_and_passes_by_what_it_died_of(case, tmp_path):
    pool = Threads()
    pool.deaths = ["this", "that"]
    small = minified(case, pool, tmp_path / "small")
    assert small.compute_nodes == 1
    assert [entry["key"] for entry in small.log if entry["event"] == "fatal"] == ["that", "this"]
    assert pool.searches == 3
    assert not (tmp_path / "small" / "trying").exists()


def test_a_search_that_dies_of_nothing_that_it_tried_is_an_error_and_leaves_nothing(case, tmp_path):
    pool = Threads()
    pool.deaths = [""]
    with pytest.raises(ResourceError, match="the search for a smaller case of 001_dynamo is killed by SIGSEGV"):
        minified(case, pool, tmp_path / "small")
    assert not list((tmp_path / "small").iterdir())


def test_no_more_commands_run_at_once_than_are_wanted(case, tmp_path):
    notes = tmp_path / "notes"
    check = f"echo 1 >> {notes}; sleep 0.1; echo -1 >> {notes}; grep -q ' + 1.5' {{}}/repro.py"
    small = minified(case, Threads(), tmp_path / "small", job=Job(check=check))
    assert small.compute_nodes == 1
    running = [int(line) for line in notes.read_text().split()]
    assert max(sum(running[:end]) for end in range(len(running) + 1)) == 2


class Layered(Threads):
    """A pool that is asked about inductor, or less of it: each with a judge of its own, and in its order."""

    def __init__(self, whole, lesser):
        super().__init__()
        self.judges, self.asked, self.failed = {True: lesser, False: whole}, [], set()

    def submit(self, job, payload, **options):
        if job == SEARCH_JOB:
            return super().submit(job, payload, **options)
        text = (Path(payload["folder"]) / "repro.py").read_text()
        is_less = "aot_eager_decomp_partition" in text
        verdict = self.judges[is_less](text)
        self.asked.append(is_less)
        if not is_less and verdict.status is Status.DIFFERS:
            self.failed.add(body(text))
        answer = Future()
        answer.set_result(Outcome(ending=Ending.RETURNED, value=plain_data({"verdict": verdict})))
        return answer


def verdict_on(text, *, wrong):
    """Call the last result wrong where a part adds 1.5, and is as it must be."""
    added = [float(number) for number in re.findall(r"= \w+ \+ ([\d.]+)", text)]
    if 1.5 not in added or not wrong(text):
        return SAME
    mismatch = Mismatch(kind=Kind.VALUE, detail="")
    facts = {"role": "output", "status": Status.DIFFERS, "dtype": "float32", "shape": (4, 6)}
    leaf = LeafReport(path=f"output[{added.index(1.5)}]", mismatches=(mismatch,), **facts)
    return Verdict(status=Status.DIFFERS, reasons=("differs",), leaves=(leaf,))


@pytest.fixture(scope="module")
def compiled():
    (case, *_) = torchparity.capture(Chain(), (torch.randn(4, 6),), backend="inductor")
    return case


def body(text):
    """Return the graph of a script, and its inputs."""
    return text[text.index("class Graph") : text.index("def judge")]


def has_one_element(text):
    return bool(re.search(r"[\[(]1, 1[\])]", body(text)))


def test_less_of_the_compiler_is_asked_where_it_fails_alike_and_the_end_is_asked_of_the_whole(compiled, tmp_path):
    pool = Layered(*[lambda text: verdict_on(text, wrong=lambda text: True)] * 2)
    small = minified(compiled, pool, tmp_path / "small")
    assert small.compute_nodes == 1
    assert small.case.recipe.backend == "inductor"
    assert small.complete
    assert sum(pool.asked) >= 2
    assert body((tmp_path / "small" / "case" / "repro.py").read_text()) in pool.failed


def test_where_less_of_the_compiler_fails_in_more_ways_the_end_still_fails_with_the_whole(compiled, tmp_path):
    def whole(text):
        return verdict_on(text, wrong=lambda text: not has_one_element(text))

    pool = Layered(whole, lambda text: verdict_on(text, wrong=lambda text: True))
    small = minified(compiled, pool, tmp_path / "small")
    assert small.compute_nodes == 1
    assert small.complete
    assert sum(pool.asked) >= 1
    assert body((tmp_path / "small" / "case" / "repro.py").read_text()) in pool.failed
    assert small.case.inputs[0][1].shape != (1, 1)


def test_where_less_of_the_compiler_is_right_it_is_asked_once(compiled, tmp_path):
    pool = Layered(lambda text: verdict_on(text, wrong=lambda text: True), lambda text: SAME)
    small = minified(compiled, pool, tmp_path / "small")
    assert (small.compute_nodes, sum(pool.asked)) == (1, 1)
    assert small.case.recipe.backend == "inductor"
