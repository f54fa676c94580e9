"""A check as a JUnit file: what a CI system reads of it."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from torchparity import Kind, LeafReport, Mismatch, Status, UsageError, Verdict
from torchparity.records import JointVerdict
from torchparity.report.junit import junit_text, write_junit

HOSTILE = 'a<b>&"c"\'d\x00\x1b[31m\x0b]]>\ud800\uffff\n\té€\U0001f600'


def leaf(path="output", status=Status.DIFFERS):
    wrong = (Mismatch(kind=Kind.VALUE, detail="value", where=(1, 0), expected="2", actual="3"),)
    return LeafReport(
        path=path,
        role="output",
        status=status,
        dtype="float32",
        shape=(2, 2),
        score=math.inf,
        mismatches=wrong if status is Status.DIFFERS else (),
    )


def verdict(status, *, name="make", reason="1 of 3 leaves differ"):
    return Verdict(
        status=status,
        reasons=(reason, "and so on"),
        leaves=(leaf(name, status),) if status is not Status.UNKNOWN else (),
        recipe={"backend": "inductor"},
        environment={"torch": "2.13.0", "torchparity": "0.1.0", "device": "cpu"},
        subject=name,
        threshold=8.0,
        seconds=1.5,
    )


def suite(found):
    root = ElementTree.fromstring(junit_text(found).encode())
    assert root.tag == "testsuites"
    (only,) = root
    return only


def properties(found):
    return {entry.get("name"): entry.get("value") for entry in suite(found).iter("property")}


def test_same_is_a_test_that_passes():
    found = suite(verdict(Status.SAME))
    assert (found.get("tests"), found.get("failures"), found.get("errors")) == ("1", "0", "0")
    (case,) = found.findall("testcase")
    assert (case.get("classname"), case.get("name")) == ("torchparity.check", "make against inductor")
    assert float(case.get("time")) == 1.5
    assert list(case) == []


def test_differs_is_a_failure_with_the_table():
    found = suite(verdict(Status.DIFFERS))
    assert (found.get("failures"), found.get("errors")) == ("1", "0")
    failure = found.find("testcase/failure")
    assert failure.get("type") == "value"
    assert failure.get("message") == "1 of 3 leaves differ; and so on"
    assert failure.text.startswith("DIFFERS  make against inductor")
    assert "[1, 0]: 2 became 3" in failure.text


def test_unknown_is_an_error():
    found = suite(verdict(Status.UNKNOWN))
    assert (found.get("failures"), found.get("errors")) == ("0", "1")
    assert found.find("testcase/error").get("type") == "unknown"
    assert properties(verdict(Status.UNKNOWN))["worst_leaf"] == ""


def test_a_difference_without_a_leaf_has_a_type():
    bare = Verdict(status=Status.DIFFERS, reasons=("graphs differ",))
    assert suite(bare).find("testcase/failure").get("type") == "differs"


def test_properties_say_what_was_checked():
    assert properties(verdict(Status.DIFFERS)) == {
        "backend": "inductor",
        "status": "differs",
        "kind": "value",
        "worst_leaf": "make",
        "score": "inf",
        "torch": "2.13.0",
        "torchparity": "0.1.0",
        "device": "cpu",
    }


@pytest.mark.parametrize("status", Status)
def test_hostile_names_survive(status):
    hostile = verdict(status, name=HOSTILE, reason=HOSTILE)
    case = suite(hostile).find("testcase")
    kept = 'a<b>&"c"\'d[31m]]>\n\té€\U0001f600'
    assert case.get("name") == f"{kept} against inductor"
    if status is not Status.SAME:
        assert case[0].get("message").startswith(kept)
        assert 'a<b>&"c"\'d' in case[0].text
    if status is not Status.UNKNOWN:
        assert properties(hostile)["worst_leaf"] == kept


def test_ranks_are_a_test_case_each():
    found = suite(JointVerdict(verdicts=(verdict(Status.SAME), verdict(Status.DIFFERS))))
    assert (found.get("tests"), found.get("failures")) == ("2", "1")
    names = [case.get("name") for case in found.findall("testcase")]
    assert names == ["make against inductor on rank 0", "make against inductor on rank 1"]
    assert {"status": "differs", "ranks": "2"}.items() <= {
        entry.get("name"): entry.get("value") for entry in found.iter("property")
    }.items()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    write_junit(verdict(Status.DIFFERS), tmp_path / "out.xml")
    assert [path.name for path in tmp_path.iterdir()] == ["out.xml"]
    assert (tmp_path / "out.xml").read_bytes().startswith(b'<?xml version="1.0" encoding="utf-8"?>')
    ElementTree.parse(tmp_path / "out.xml")
    with pytest.raises(UsageError, match="cannot write") as caught:
        write_junit(verdict(Status.SAME), tmp_path / "missing" / "out.xml")
    assert "--junit" in caught.value.hint
