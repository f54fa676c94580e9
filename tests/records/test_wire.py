from __future__ import annotations

import dataclasses
import json
import math

import pytest

from torchparity.records import (
    Blame,
    Diagnosis,
    Extent,
    Failure,
    Histogram,
    Kind,
    LeafReport,
    Located,
    Mismatch,
    NodeError,
    RunRecord,
    StageRun,
    Status,
    Story,
    Trial,
    Tuned,
    Verdict,
)
from torchparity.records.wire import plain_data, record_from

MISMATCHES = tuple(
    Mismatch(kind=kind, detail=f"detail of {kind.value}", where=where, expected="1", actual="2")
    for kind, where in zip(Kind, [None, (), (0,), (3, 1, 4)] * 5, strict=False)
)
LEAF = LeafReport(
    path="output[0]",
    role="output",
    status=Status.DIFFERS,
    dtype="float32",
    shape=(2, 0, 3),
    eager_error=1e-300,
    candidate_error=math.inf,
    allowed=0.1,
    score=-math.inf,
    aggregate_score=2.5,
    lone_score=1.5,
    eager_rms_error=0.3,
    candidate_rms_error=7.0,
    where=(1, 0, 2),
    wrong_elements=5,
    elements=6,
    has_reference=True,
    mismatches=MISMATCHES,
    note="kink",
    histogram=Histogram(first=-3, eager=(1, 2), candidate=(0, 3), exact=(4, 4)),
    moved=0.25,
    small=True,
    exact=True,
)
PLAIN = LeafReport(path="x", role="input", status=Status.SAME, dtype="int64", shape=())
VERDICT = Verdict(
    status=Status.UNKNOWN,
    reasons=("one", "two — é"),
    leaves=(LEAF, PLAIN),
    runs=(RunRecord(name="eager", ending="returned", seconds=0.5, detail="d"),),
    recipe={"backend": "inductor", "options": {"a": "1"}, "dynamic": None},
    environment={"torch": "2.13", "threads": 2},
    subject="model",
    threshold=8.0,
    failure=Failure(type="E", message="m", stage="run", phase="p", frame="f:1 g", traceback="t", lacking="l"),
    differs_in=(1, 3),
    seconds=1.25,
    compiled=Extent(inside=3, operations=4, graphs=2, left=("a break",)),
    exact=("output[0]",),
    tuned=(
        Tuned(kernel="mm", shapes="2x2", choices=("aten", "triton"), taken="aten", wrong=("triton",), unusable=("b",)),
    ),
)


def carried(verdict):
    return record_from(Verdict, json.loads(json.dumps(plain_data(verdict), allow_nan=False)))


def test_every_field_of_a_verdict_survives():
    found = carried(VERDICT)
    for field in dataclasses.fields(Verdict):
        assert getattr(found, field.name) == getattr(VERDICT, field.name), field.name
    assert found == VERDICT


def test_the_example_has_no_field_at_its_default():
    """A field that is added later must be added above as well, or its journey is not tested."""
    for record in (VERDICT, LEAF, VERDICT.failure, VERDICT.runs[0], MISMATCHES[3]):
        for field in dataclasses.fields(record):
            if field.default is not dataclasses.MISSING:
                assert getattr(record, field.name) != field.default, field.name


def test_a_bare_verdict_survives():
    bare = Verdict(status=Status.SAME, reasons=())
    assert carried(bare) == bare


def test_every_kind_of_mismatch_survives():
    assert {mismatch.kind for mismatch in carried(VERDICT).leaves[0].mismatches} == set(Kind)


@pytest.mark.parametrize("field", ["eager_error", "candidate_error", "allowed", "score", "eager_rms_error"])
def test_nan_survives(field):
    verdict = dataclasses.replace(VERDICT, leaves=(dataclasses.replace(LEAF, **{field: math.nan}),))
    assert math.isnan(getattr(carried(verdict).leaves[0], field))


def test_status_and_derived_values_are_the_same():
    for status in Status:
        verdict = dataclasses.replace(VERDICT, status=status)
        found = carried(verdict)
        assert found.status is status
        assert (found.exit_code, found.kind, found.worst) == (verdict.exit_code, verdict.kind, verdict.worst)


def test_negative_zero_and_tiny_numbers_survive():
    for number in (-0.0, 5e-324, 1.7e308):
        leaf = dataclasses.replace(LEAF, score=number)
        assert repr(carried(dataclasses.replace(VERDICT, leaves=(leaf,))).leaves[0].score) == repr(number)


def test_every_record_of_a_diagnosis_survives():
    found = Diagnosis(
        subject="m",
        backend="inductor",
        began="now",
        verdict=VERDICT,
        story=Story(subject="m", backend="b", torch="2", failure=VERDICT.failure),
        located=Located(
            subject="m", kind="value", how="introduced", culprit=NodeError(place=1, name="a", operation="b")
        ),
        blame=Blame(subject="m", kind="value", stage="codegen", failing=Trial(change="c", status=Status.DIFFERS)),
        stages=(StageRun(name="check", ending="done"),),
    )
    assert record_from(Diagnosis, json.loads(json.dumps(plain_data(found), allow_nan=False))) == found
