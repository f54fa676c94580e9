from __future__ import annotations

import dataclasses
import json
import math

import pytest

from torchparity.records.wire import pack, unpack, verdict_from
from torchparity.records import Failure, Histogram, Kind, LeafReport, Mismatch, RunRecord, Status, Verdict

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
    eager_rms_error=0.3,
    candidate_rms_error=7.0,
    where=(1, 0, 2),
    wrong_elements=5,
    elements=6,
    has_reference=True,
    mismatches=MISMATCHES,
    note="kink",
    histogram=Histogram(first=-3, eager=(1, 2), candidate=(0, 3), exact=(4, 4)),
)
PLAIN = LeafReport(path="x", role="input", status=Status.SAME, dtype="int64", shape=())
VERDICT = Verdict(
    status=Status.UNKNOWN,
    reasons=("one", "two — é"),
    leaves=(LEAF, PLAIN),
    runs=(RunRecord(name="eager", ending="returned", seconds=0.5, detail="d"),),
    recipe={"backend": "inductor", "options": {"a": "1"}, "dynamic": None},
    environment={"torch": "2.13", "threads": 2, "odd": math.inf},
    subject="model",
    threshold=8.0,
    failure=Failure(type="E", message="m", stage="run", phase="p", frame="f:1 g", traceback="t"),
    differs_in=(1, 3),
    seconds=1.25,
)


def carried(verdict):
    return verdict_from(json.loads(json.dumps(pack(verdict), allow_nan=False)))


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


@pytest.mark.parametrize(
    "data", [{"float": "x"}, {"float": 3}, {"float": "inf"}, {"float": None}, {"float": "1", "a": 2}]
)
def test_a_mapping_that_looks_like_a_special_number_is_still_a_mapping(data):
    assert unpack(json.loads(json.dumps(pack(data)))) == data


def test_negative_zero_and_tiny_numbers_survive():
    found = unpack(json.loads(json.dumps(pack([-0.0, 5e-324, 1.7e308]))))
    assert [repr(number) for number in found] == ["-0.0", "5e-324", "1.7e+308"]
