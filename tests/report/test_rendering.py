"""What a verdict looks like to a person and to a machine."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from torchparity import Kind, LeafReport, Mismatch, Status, UsageError, Verdict
from torchparity.report.machine import as_data, write_json
from torchparity.report.terminal import plain_text, render


def leaf(path="output", **facts):
    return LeafReport(path=path, role="output", status=Status.SAME, dtype="float32", shape=(2, 2), **facts)


WRONG = LeafReport(
    path="grad.weight",
    role="gradient",
    status=Status.DIFFERS,
    dtype="float32",
    shape=(2, 2),
    score=math.inf,
    eager_error=1e-7,
    candidate_error=0.25,
    allowed=1e-6,
    has_reference=True,
    mismatches=(Mismatch(kind=Kind.VALUE, detail="value", where=(1, 0), expected="2", actual="3"),),
)
VERDICT = Verdict(
    status=Status.DIFFERS,
    reasons=("1 of 3 leaves differ",),
    leaves=(WRONG, leaf(score=1.5), leaf("parameter.x", note="unchanged")),
    recipe={"backend": "inductor"},
    subject="make",
    threshold=8.0,
)


def test_the_answer_stands_first_and_the_worst_leaf_next():
    lines = plain_text(VERDICT).splitlines()
    assert lines[0].startswith("DIFFERS  make against inductor")
    assert lines[1].strip() == "1 of 3 leaves differ"
    assert lines[2].strip().startswith("severity wrong")
    assert lines[4].startswith("grad.weight")
    assert "[1, 0]: 2 became 3" in lines[4]
    assert "1 parameters, buffers and inputs left unchanged by both" in lines[-1]
    assert not any(line.startswith("parameter.x") for line in lines)


def test_rows_can_be_limited():
    text = plain_text(VERDICT, leaves=1)
    assert "and 1 more leaves" in text


def test_names_of_the_user_are_not_markup():
    verdict = Verdict(status=Status.SAME, reasons=("[red]no[/red]",), leaves=(leaf("output[bold]x"),), subject="[b]m")
    text = plain_text(verdict)
    assert "[red]no[/red]" in text
    assert "output[bold]x" in text
    assert "[b]m" in text


def test_it_fits_80_columns():
    buffer = io.StringIO()
    render(VERDICT, Console(file=buffer, width=80))
    assert all(len(line) <= 80 for line in buffer.getvalue().splitlines())


def test_json_is_strict_and_complete(tmp_path):
    path = tmp_path / "out.json"
    write_json(VERDICT, path)
    data = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert data == as_data(VERDICT)
    assert data["schema"] == 1
    assert data["status"] == "differs"
    assert data["exit_code"] == 1
    assert data["leaves"][0]["score"] == "inf"
    assert data["leaves"][0]["mismatches"][0]["kind"] == "value"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_json_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        write_json(VERDICT, tmp_path / "missing" / "out.json")


def test_kinds_of_a_verdict():
    assert VERDICT.kind == "value"
    assert VERDICT.worst is WRONG
    assert {status: Verdict(status=status, reasons=()).exit_code for status in Status} == {
        Status.SAME: 0,
        Status.DIFFERS: 1,
        Status.UNKNOWN: 125,
    }
