"""A hunt made by hand, as large as wanted, and one whose texts try to break out of a page."""

from __future__ import annotations

from dataclasses import replace

from tests.report.samples import HOSTILE

from torchparity.records import HuntBucket, HuntBug, HuntFind, HuntForm, HuntReason, HuntSummary, HuntVariant

PROGRAM = """import torch

def program(b):
    b.unfold(0, 1, 2).add_(1)

def make():
    return (program, torch.arange(2).to(torch.float32))
"""
SCRIPT = """import torch
def program(b):
    b.unfold(0, 1, 2).add_(1)

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
"""


def bug(name="aot-autograd-add-unfold-value", **facts):
    usual = {
        "kind": "value", "stage": "aot_autograd", "severity": "wrong", "title": "1 of 3 leaves differ",
        "part": "add_ unfold", "verified": 2, "likely": 5, "seeds": (4, 7), "options": {"dynamic": True},
        "program": PROGRAM, "script": SCRIPT, "issue": "# It differs\n", "minute": 3.2,
        "files": (f"bugs/{name}/issue.md", f"bugs/{name}/repro.py"),
    }  # fmt: skip
    return HuntBug(name=name, **{**usual, **facts})


def find(seed=4, **facts):
    usual = {
        "kind": "value", "severity": "wrong", "state": "settled", "bug": "aot-autograd-add-unfold-value",
        "options": {"config": {"inductor.cpp.simdlen": 1}}, "reasons": ("1 of 3 leaves differ",),
        "small": PROGRAM, "program": PROGRAM, "questions": 146,
    }  # fmt: skip
    return HuntFind(seed=seed, **{**usual, **facts})


def hunt(**facts):
    """Three bugs, one of them known; a form that was never drawn; nothing wrong with the checker."""
    bugs = (
        bug("codegen-zebra-raises", kind="raises", severity="fails", stage="codegen", part="zebra", verified=1,
            likely=0),
        bug("passes-ant-stride", kind="stride", severity="layout", stage="joint_graph_passes", part="ant", verified=9,
            switch={"inductor.disabled_passes": "ant"}, script=""),
        bug(known="198102", known_title="unfold with gaps", since="broken since 2.9 (2.8 works)"),
    )  # fmt: skip
    usual = {
        "torch": "2.13.0+cpu", "began": "2026-11-17T12:35:43+00:00", "ended": "2026-11-17T12:39:50+00:00", "seed": 1000,
        "minutes": 4.1, "drawing": 3.0, "statuses": {"differs": 3, "same": 56, "unknown": 1},
        "buckets": (HuntBucket(minute=0, programs=32, finds=1), HuntBucket(minute=1, programs=16, finds=2, bugs=1),
                    HuntBucket(minute=2, programs=12), HuntBucket(minute=3, bugs=2)),
        "forms": (HuntForm(table="view", name="{x}[{index}]", lines=12, programs=10, finds=1),
                  HuntForm(table="view", name="unfold", lines=3, programs=3, finds=3),
                  HuntForm(table="layer", name="conv2d")),
        "variants": (HuntVariant(options={}, programs=42, finds=2, unknown=1, seconds=2.33),
                     HuntVariant(options={"dynamic": True}, programs=18, finds=1, seconds=2.7)),
        "left_out": (HuntReason(text="refused", count=125, meaning="eager raises"),
                     HuntReason(text="too large", count=0, meaning="values so large that nothing stays exact")),
        "bugs": bugs, "finds": (find(4), find(5, state="new", bug="", small="")),
        "unknown": (HuntReason(text="the model itself raises RuntimeError", count=1, seeds=(1025,)),),
    }  # fmt: skip
    return HuntSummary(**{**usual, **facts})


def large(bugs=60, finds=900, minutes=480):
    """A night of hunting."""
    kinds, stages = ("value", "stride", "raises", "dtype"), ("codegen", "lowerings", "aot_autograd", "dynamo")
    severities = ("fails", "layout", "wrong", "structure", "nonfinite", "precision")
    span = 10
    return hunt(
        bugs=tuple(
            bug(f"{stages[place % 4]}-operation{place}-{kinds[place % 4]}", kind=kinds[place % 4],
                stage=stages[place // 2 % 4], severity=severities[place % 6], verified=1 + place % 3,
                likely=place * 7 % 40, known=str(190000 + place) if place % 3 == 0 else "")
            for place in range(bugs)
        ),
        finds=tuple(find(seed, state=("settled", "likely", "new", "gone")[seed % 4]) for seed in range(finds)),
        forms=tuple(
            HuntForm(table=("view", "pointwise", "layer")[place % 3], name=f"operation{place}",
                     lines=place * place % 97, programs=place * place % 97,
                     finds=place % 5 if place * place % 97 > 4 else 0)
            for place in range(354)
        ),
        buckets=tuple(
            HuntBucket(minute=place * span, programs=200 + place * 37 % 80, finds=17 + place % 4,
                       bugs=int(place < 20) * 3)
            for place in range(minutes // span)
        ),
        bucket_minutes=span, minutes=float(minutes), drawing=float(minutes),
        statuses={"same": 10200, "differs": finds, "unknown": 151, "error": 3},
        errors=(HuntReason(text="RuntimeError: our own", count=3, seeds=(1, 2, 3)),),
    )  # fmt: skip


def hostile():
    """A hunt in which everything that comes from a program or a compiler is hostile."""
    found = hunt()
    wild = bug(
        HOSTILE, kind=HOSTILE, stage=HOSTILE, severity=HOSTILE, title=HOSTILE, part=HOSTILE, switch={HOSTILE: HOSTILE},
        known=HOSTILE, known_title=HOSTILE, since=HOSTILE, options={HOSTILE: HOSTILE}, issue=HOSTILE, script=HOSTILE,
        program=f"def program(x):\n    {HOSTILE}\n", files=(f"bugs/{HOSTILE}/x",),
    )  # fmt: skip
    reason = HuntReason(text=HOSTILE, count=2, meaning=HOSTILE, seeds=(1,))
    return replace(
        found,
        torch=HOSTILE,
        bugs=(wild, *found.bugs),
        finds=(
            find(1, kind=HOSTILE, severity=HOSTILE, state=HOSTILE, bug=HOSTILE, options={"config": HOSTILE}),
            find(2, bug="", note=HOSTILE, program=HOSTILE, small=HOSTILE, reasons=(HOSTILE,)),
        ),
        forms=(HuntForm(table=HOSTILE, name=HOSTILE, lines=1, programs=1), HuntForm(table=HOSTILE, name=HOSTILE)),
        variants=(HuntVariant(options={HOSTILE: HOSTILE}, programs=1),),
        left_out=(reason,),
        unknown=(reason,),
        errors=(reason,),
        statuses={HOSTILE: 3, "same": 2},
    )
