"""Nothing foreign in the parent: an eager edit, a tap, a picture or a target that ends its process is an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import torchparity
from torchparity.diagnosis.locate import Search, look_at
from torchparity.errors import ResourceError
from torchparity.judge.script import write_bundle
from torchparity.verbs.asking import open_pool
from torchparity.workers.outcome import Limits
from warm import command_line

PLANTED = Path(__file__).parents[1] / "planted"
ENDS = ("segfault", "hang", "exit")
SHORT = Limits(seconds=12)


SLOW = pytest.mark.slow


@pytest.fixture(params=[pytest.param("segfault", marks=SLOW), pytest.param("hang", marks=SLOW), "exit"])
def ends(request, monkeypatch):
    monkeypatch.setenv("TOUCHY", request.param)
    return request.param


@pytest.fixture
def touchy(monkeypatch):
    monkeypatch.syspath_prepend(PLANTED)
    import touchy_operator

    return touchy_operator


@pytest.fixture
def case(touchy, ends):
    torch.manual_seed(0)
    cases = torchparity.capture(touchy.Model(), (torch.randn(6, 3),), backend=touchy.wrong_beside_touchy)
    return next(case for case in cases if case.level == "dynamo")


def fatal_keys(folder: Path) -> list[str]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [entry["key"] for entry in map(json.loads, lines) if entry["event"] == "fatal"]


@SLOW
def test_minify_goes_on_where_an_eager_edit_ends_its_process_and_resume_passes_the_place(case, ends, tmp_path):
    out = tmp_path / "small"
    started = torchparity.minify(case, out=out, limits=SHORT, workers=2, queries=1)
    small = torchparity.resume_minify(out, workers=2) if not started.complete else started
    assert small.complete
    assert small.reproduced == (3, 3)
    assert small.compute_nodes == 1
    assert small.case.storages[0].data.numel() // 4 >= 4  # Four rows are the fewest that the operator bears.
    fatal = fatal_keys(out)
    assert fatal
    assert len(fatal) == len(set(fatal))  # None was tried again.


def test_a_tap_that_ends_its_process_is_no_answer_and_the_search_goes_on(case, ends, tmp_path):
    """The taps show values over fifty, and the operator is run on them, eagerly."""
    folder = write_bundle(case, tmp_path / "case")
    with open_pool(1, compilers=False) as pool:
        search = Search(folder, pool, limits=SHORT)
        assert search.at_once() is None or search.unanswered == 0
        found = search.closely()
    assert found.culprit is not None or found.unanswered
    assert found.kind in ("value", "bias")


@pytest.mark.slow
def test_a_picture_that_ends_its_process_is_said(touchy, tmp_path, monkeypatch):
    (case, *_) = torchparity.capture(touchy.Model(), (torch.randn(2, 3),), backend="eager")
    folder = write_bundle(case, tmp_path / "case")
    for ends in ENDS:
        monkeypatch.setenv("TOUCHY", ends)
        with open_pool(1, compilers=False) as pool, pytest.raises(ResourceError, match="the graph cannot be looked at"):
            look_at(folder, pool, Limits(seconds=8))


TARGET = """
import sys
sys.path.insert(0, {planted!r})
import torch, touchy_operator

def dies():
    return touchy_operator.Model(), (torch.randn(2, 3),)
"""


SLOW = [pytest.param(command, marks=pytest.mark.slow) for command in ("blame", "minify")]  # As `locate` does.


@pytest.mark.parametrize("command", ["locate", *SLOW, "diagnose"])
def test_a_target_that_ends_its_process_is_two_lines_in_every_verb(command, tmp_path, monkeypatch):
    monkeypatch.setenv("TOUCHY", "segfault")
    (tmp_path / "m.py").write_text(TARGET.format(planted=str(PLANTED)))
    done = command_line(tmp_path, command, "m.py:dies", "--backend", "aot_eager", "-q")
    assert done.returncode in (2, 125), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "SIGSEGV" in done.stdout + done.stderr
