"""A diagnosis made by hand, with as many nodes as wanted and names that try to break out of a page."""

from __future__ import annotations

from dataclasses import replace

from torchparity.records import (
    Blame,
    Diagnosis,
    DrawnNode,
    FailingGraph,
    Histogram,
    Kind,
    LeafReport,
    Located,
    Mismatch,
    NodeError,
    Query,
    RunRecord,
    Smallest,
    StageRun,
    Status,
    Trial,
    Verdict,
)

HOSTILE = "</script><script>window.hurt=1</script><img src=x onerror='window.hurt=2'>\"'`&\u202e\u0000" + "ж" * 300
LINE = "model.py:11 in forward: steps = x // 0.1"


def leaf(path="output", score=100.0, status=Status.DIFFERS, **facts):
    mismatches = (Mismatch(kind=Kind.VALUE, detail="value", where=(1, 2), expected="1", actual="3"),)
    return LeafReport(
        path=path,
        role="output",
        status=status,
        dtype="float32",
        shape=(2, 3),
        score=score,
        candidate_error=2.0,
        eager_error=1e-7,
        allowed=1e-5,
        elements=6,
        wrong_elements=1,
        mismatches=mismatches if status is Status.DIFFERS else (),
        histogram=Histogram(first=-24, eager=(4, 2, 0), candidate=(0, 0, 6), exact=(0, 0)),
        **facts,
    )


def nodes(count, name="add"):
    """A chain of operations with an input beside every third of them."""
    drawn = [DrawnNode(name="x", role="input", code="x", value="float32[2, 3]", sample="1, 2")]
    last = place = 0
    while len(drawn) < count - 1:
        inputs = (last,)
        if place % 3 == 0:
            drawn.append(DrawnNode(name=f"weight_{place}", role="input", code=f"weight_{place}"))
            inputs = (last, len(drawn) - 1)
        drawn.append(
            DrawnNode(
                name=f"{name}_{place}",
                role="operation",
                operation=name,
                code=f"{name}_{place} = {name}(x)",
                line=LINE,
                value="float32[2, 3]",
                sample="1, 2, …  (from 1 to 2)",
                inputs=inputs,
                place=place,
            )
        )
        last, place = len(drawn) - 1, place + 1
    drawn.append(DrawnNode(name="output", role="result", code="return x", inputs=(last,)))
    return tuple(drawn)


def diagnosis(*, count=20, name="add", subject="model.py:make", leaves=None):
    drawn = nodes(count, name)
    operations = [node for node in drawn if node.role == "operation"]
    guilty = len(operations) // 2
    errors = tuple(
        NodeError(
            place=node.place,
            name=node.name,
            operation=node.operation,
            line=LINE,
            introduced=500.0 if node.place == guilty else 0.5,
            introduced_kind="value" if node.place == guilty else "",
            propagated=500.0 if node.place >= guilty else 0.5,
            propagated_kind="value" if node.place >= guilty else "",
        )
        for node in operations
    )
    failing = Trial(change="as it is", status=Status.DIFFERS, kind="value", seconds=1.0)
    passing = Trial(change="without the lowering of div", status=Status.SAME, seconds=1.0)
    return Diagnosis(
        subject=subject,
        backend="inductor",
        began="2026-01-02T03:04:05+00:00",
        folder="runs/one",
        verdict=Verdict(
            status=Status.DIFFERS,
            reasons=("1 of 3 leaves differ",),
            leaves=leaves or (leaf("output[0]"), leaf("output[1]", 3000.0), leaf("output[2]", 1.0, status=Status.SAME)),
            runs=(RunRecord(name="eager", ending="returned", seconds=0.1),),
            recipe={"backend": "inductor", "source": "import torch\n"},
            threshold=8.0,
            subject=subject,
        ),
        graph=FailingGraph(
            name="001_dynamo",
            level="dynamo",
            direction="both",
            operations=len(operations),
            inputs=1,
            kind="value",
            nodes=drawn,
        ),
        located=Located(
            subject="001_dynamo",
            kind="value",
            how="introduced",
            culprit=errors[guilty],
            nodes=errors,
            threshold=8.0,
            compiles=1,
        ),
        smallest=Smallest(
            operations=1,
            inputs=1,
            started_from={"name": "001_dynamo", "operations": len(operations), "inputs": 1},
            script="import torch\n\nprint(torch.ones(1) // 0.1 < 9.5)\n",
            script_path="small/repro.py",
            output="AssertionError",
            title="it differs",
            plain=True,
            reproduced=(3, 3),
            queries=3,
            seconds=12.0,
            complete=True,
            curve=(
                Query(number=1, operations=len(operations), stage="start", fails=True),
                Query(number=2, operations=1, stage="nodes", fails=True, adopted=True),
                Query(number=3, operations=1, stage="values", fails=False),
            ),
        ),
        blame=Blame(
            subject="001_dynamo",
            kind="value",
            stage="lowerings",
            part="div",
            failing=failing,
            passing=passing,
            trials=(failing, passing),
        ),
        stages=tuple(StageRun(name=entry, ending="done", seconds=1.0) for entry in ("check", "graph", "locate")),
        environment={"torch": "2.13.0", "platform": "any"},
        seconds=75.0,
    )


def hostile():
    """A diagnosis in which everything that comes from a user's program is hostile."""
    found = diagnosis(name=HOSTILE, subject=HOSTILE, leaves=(leaf(HOSTILE), leaf(HOSTILE + "2", 3.0)))
    assert found.smallest is not None
    assert found.blame is not None
    return replace(
        found,
        smallest=replace(found.smallest, script=HOSTILE, output=HOSTILE, title=HOSTILE),
        blame=replace(found.blame, part=HOSTILE),
        environment={"torch": "2.13.0", HOSTILE: HOSTILE},
    )
