"""What ranks found, and why they ended, in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from torchparity import records
from torchparity.ranks.report import blame, render_joint, why
from torchparity.records import JointVerdict, Kind, LeafReport, Loss, Mismatch, RunRecord, Standing, Status, Verdict


def verdict(status, *roles):
    leaves = tuple(
        LeafReport(
            path=role,
            role=role,
            status=status,
            dtype="float32",
            shape=(2,),
            mismatches=(Mismatch(kind=Kind.VALUE, detail="far"),) if status is Status.DIFFERS else (),
        )
        for role in roles
    )
    runs = (RunRecord(name="eager", ending="returned", seconds=0.1),)
    return Verdict(status=status, reasons=("a reason",), leaves=leaves, runs=runs, subject="model", threshold=8.0)


SAME, UNKNOWN = verdict(Status.SAME, "output"), verdict(Status.UNKNOWN, "output")
WRONG_OUTPUT, WRONG_GRADIENT = verdict(Status.DIFFERS, "output"), verdict(Status.DIFFERS, "gradient")


@pytest.mark.parametrize(
    ("verdicts", "status", "code"),
    [((SAME, SAME), "same", 0), ((SAME, UNKNOWN), "unknown", 125), ((UNKNOWN, WRONG_OUTPUT), "differs", 1)],
)
def test_one_rank_decides_for_all(verdicts, status, code):
    joint = JointVerdict(verdicts=verdicts)
    assert (joint.status.value, joint.exit_code) == (status, code)
    with pytest.raises(TypeError, match="no truth value"):
        bool(joint)


def test_the_rank_that_differs_by_itself_is_named_first():
    joint = JointVerdict(verdicts=(WRONG_GRADIENT, WRONG_OUTPUT))
    assert (joint.guilty, joint.worst) == ((1,), 1)
    assert blame(joint)[0].startswith("rank 1 differs before anything is shared")
    averaged = JointVerdict(verdicts=(WRONG_GRADIENT, WRONG_GRADIENT), unaveraged=(SAME, WRONG_GRADIENT))
    assert blame(averaged) == ["rank 1 differs in gradients, before the ranks average them"]
    assert blame(JointVerdict(verdicts=(WRONG_GRADIENT, WRONG_GRADIENT), unaveraged=(SAME, SAME)))[0].startswith(
        "no rank"
    )
    assert blame(JointVerdict(verdicts=(WRONG_GRADIENT, WRONG_GRADIENT)))[0].endswith("is not known")


def test_each_rank_has_a_row():
    buffer = io.StringIO()
    render_joint(JointVerdict(verdicts=(WRONG_GRADIENT, WRONG_OUTPUT)), Console(file=buffer, width=100))
    lines = [line.split() for line in buffer.getvalue().splitlines()]
    assert ["0", "differs", "gradient", "value", "0"] in lines
    assert ["1", "differs", "output", "value", "0"] in lines
    assert ["rank", "1"] in lines


@pytest.mark.parametrize(
    ("trouble", "detail", "words"),
    [
        (records.DIED, "signal 9", "rank 1 died (signal 9) in 'eager', last seen at m.py:3 in forward"),
        (records.DIED, "", "rank 1 died in 'eager', last seen at m.py:3 in forward"),
        (records.LATE, "", "rank 1 has not answered for 5 s: it is in 'eager', at m.py:3 in forward"),
        (
            records.SILENT,
            "",
            "rank 1 has not answered for 5 s, and gives no sign of life: it was in 'eager', at m.py:3",
        ),
        (records.STOPPED, "", "rank 1 was told to stop (SIGTERM) in 'eager'"),
        (records.APART, "graph 2", "rank 1 is at 'graph 2', where other ranks are not"),
        (records.FAILED, "ValueError: no", "rank 1 failed, and the others wait for it: ValueError: no"),
    ],
)
def test_every_trouble_has_its_words(trouble, detail, words):
    well = Standing(rank=0, phase="eager", waits=True)
    ill = Standing(rank=1, phase="eager", line="m.py:3 in forward", trouble=trouble, detail=detail)
    said = why(Loss(kind=trouble, code=125, limit=5.0, standings=(well, ill)))
    assert said[0].startswith(words)
    assert said[1] == "rank 0 waited for the others after 'eager'"


def test_a_store_that_is_gone_and_a_rank_that_never_came():
    assert "is gone" in why(Loss(kind=records.UNREACHABLE, code=125, limit=5.0))[0]
    never = Loss(kind=records.SILENT, code=125, limit=5.0, standings=(Standing(rank=0, trouble=records.SILENT),))
    assert why(never)[0].endswith("it was in its start: it has never answered")
    assert "--timeout" in why(Loss(kind=records.LATE, code=125, limit=5.0, standings=(Standing(rank=0),)))[0]
