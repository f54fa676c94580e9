"""Errors that stick, on a real GPU: each is a verdict, and the process that asks has a device that works after it."""

from __future__ import annotations

import pytest
import torch
from benchmarks.cuda import FAULTS

from torchparity import Status
from torchparity.records import Kind
from torchparity.request import request_for
from torchparity.run.target import Target
from torchparity.verbs.apart import checked_apart
from torchparity.verbs.asking import PRELOAD
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

pytestmark = [
    pytest.mark.cuda,
    # Owed to the machine: there is no GPU on most of them.
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=1, preload=PRELOAD) as workers:
        yield workers


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("faults") / "model.py"
    place.write_text(FAULTS)
    return Target(f"{place}:make")


@pytest.mark.parametrize(
    ("backend", "status", "told"),
    [
        ("asserting", Status.DIFFERS, "device-side assert"),
        ("reaching", Status.DIFFERS, "illegal"),
        ("hanging", Status.DIFFERS, "never ends"),
        ("exhausting", Status.UNKNOWN, "memory"),
    ],
)
def test_an_error_that_sticks_is_a_verdict(pool, model, backend, status, told):
    verdict = checked_apart(model, request_for("check", {"backend": backend}), pool, Limits(seconds=240.0))
    assert verdict.status is status, verdict.reasons
    assert told in " ".join(verdict.reasons)
    if status is Status.DIFFERS:
        assert verdict.kind == Kind.CRASHES.value
        assert verdict.environment["device"].startswith("cuda")

    after = checked_apart(model, request_for("check", {"backend": "aot_eager"}), pool, Limits(seconds=240.0))
    assert after.status is Status.SAME, after.reasons
