"""Graphs that are tapped while the check still compiles: the one that fails is known by its digest."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

import torchparity
from torchparity.diagnosis.taps import TAP_JOB
from torchparity.judge.script import write_bundle
from torchparity.observe import keeping
from torchparity.records import Progress, Status
from torchparity.request import request_for
from torchparity.verbs.ahead import GRAPHS, Ahead
from torchparity.verbs.failing import examine
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool


class Desk:
    """In the place of a pool: writes down what is asked and what is dropped, and answers nothing."""

    def __init__(self, workers=2):
        self.workers, self.asked, self.dropped = workers, [], []

    def submit(self, job, payload, **options):
        self.asked.append((job, payload["folder"]))
        return Future()

    def drop(self, asked):
        self.dropped.append(asked)


def bundles(folder, count):
    """Write graphs that differ in a number."""
    made = []
    for number in range(count):
        (case, *_) = torchparity.capture(
            lambda x, number=number: torch.sin(x) + number, (torch.ones(3),), backend="eager"
        )
        made.append(replace(case, name=f"{number:03d}_dynamo"))
        write_bundle(made[-1], folder / made[-1].name)
    return made


def heard(folder, case):
    return Progress(run=3, runs=8, name="inductor 1", candidate=True, bundle=str(folder / case.name))


def test_the_answer_is_that_of_the_graph_that_fails_and_the_others_are_dropped(tmp_path):
    cases, pool, begun = bundles(tmp_path, GRAPHS + 1), Desk(), []
    with Ahead(pool, Limits(), begin=lambda: begun.append(True)) as ahead:
        for case in [*cases, cases[0]]:
            ahead.hear(heard(tmp_path, case))
        assert [job for job, _ in pool.asked] == [TAP_JOB] * GRAPHS
        assert begun == [True]
        asked = list(ahead.asked.values())
        assert ahead.of(replace(cases[1], name="graph", signature=None)) is asked[1]
        assert pool.dropped == [asked[0], asked[2]]
        folder = ahead.folder(request_for("check", {}))
        assert folder.is_dir()
    assert not folder.exists()
    assert asked[1] in pool.dropped


def test_a_graph_that_nobody_asked_about_has_no_answer(tmp_path):
    first, second = bundles(tmp_path, 2)
    with Ahead(Desk(), Limits()) as ahead:
        ahead.hear(heard(tmp_path, first))
        assert ahead.of(second) is None


@pytest.mark.parametrize(("workers", "mode", "wanted"), [(1, None, False), (2, None, True), (2, "max-autotune", False)])
def test_nothing_is_asked_ahead_where_it_would_be_in_the_way(workers, mode, wanted):
    with Ahead(Desk(workers), Limits()) as ahead:
        assert (ahead.folder(request_for("check", {"mode": mode})) is not None) is wanted


def model(x):
    y = torch.tanh(x) + 1
    print(end="")
    return y * torch.rand(3) + torch.sin(y)


def test_what_is_written_ahead_is_the_graph_that_is_judged_afterwards(tmp_path):
    subject = torchparity.Subject(model, (torch.randn(3, requires_grad=True),))
    request = request_for("check", {"backend": torchparity.faults.plant("scale_percent", site=2)})
    events = []
    (tmp_path / "graphs").mkdir()
    found = examine(subject, request, tmp_path / "graphs", progress=events.append, ahead=tmp_path / "ahead")
    assert found.verdict.status is Status.DIFFERS
    written = [event for event in events if event.bundle]
    assert [event.candidate for event in written] == [True, True]
    before = {torchparity.read_bundle(event.bundle).digest for event in written}
    assert torchparity.read_bundle(tmp_path / "graphs" / found.failing).digest in before


def test_a_graph_with_much_in_it_is_not_written_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "LITTLE", 8)
    subject, events = torchparity.Subject(torch.sin, (torch.randn(3),)), []
    examine(subject, request_for("check", {"backend": "eager"}), tmp_path, progress=events.append, ahead=tmp_path)
    assert events
    assert not any(event.bundle for event in events)
    assert not list(tmp_path.iterdir())


TARGET = """
import torch
from torch._dynamo import register_backend
from torchparity.faults import plant

wrong = plant("wrong_gelu", where="forward", site=0)


@register_backend(name="ahead_wrong")
def ahead_wrong(graph_module, inputs, **options):
    return wrong(graph_module, inputs, **options)


def model(x):
    for _ in range(5):
        x = torch.tanh(x) + 1
    return torch.nn.functional.gelu(x)


def make():
    return model, (torch.randn(4, 8),)
"""


@pytest.mark.slow
def test_a_diagnosis_taps_the_graph_once_and_while_it_checks(tmp_path, monkeypatch):
    (tmp_path / "target.py").write_text(TARGET)
    log, submit = [], Pool.submit

    def logged(self, job, payload, **options):
        asked = submit(self, job, payload, **options)
        log.append(f"asked {job}")
        asked.add_done_callback(lambda future: log.append(f"told {job}"))
        return asked

    monkeypatch.setattr(Pool, "submit", logged)
    target = torchparity.Target(f"{tmp_path / 'target.py'}:make")
    found = torchparity.diagnose(target, backend="ahead_wrong", workers=2)
    assert found.located.culprit.operation == "gelu"
    assert found.located.compiles == 1
    assert found.smallest.operations == 1
    taps = [place for place, entry in enumerate(log) if entry == f"asked {TAP_JOB}"]
    assert len(taps) == 1
    assert taps[0] < log.index("told torchparity.verbs.jobs:target_job")


def test_where_nothing_differs_nothing_is_left(tmp_path):
    (tmp_path / "target.py").write_text(TARGET)
    target = torchparity.Target(f"{tmp_path / 'target.py'}:make")
    found = torchparity.diagnose(target, backend="aot_eager", workers=2)
    assert found.status is Status.SAME
    assert found.ended == "nothing to find"
