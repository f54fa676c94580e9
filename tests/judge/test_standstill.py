"""A process that does not end: where it stands, and when that says that the device never will."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchparity.judge.isolated import verdict_of
from torchparity.judge.standstill import standing_in
from torchparity.records import Kind, Status
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        with Pool(workers=2, compilers=False) as workers:
            yield workers


@pytest.mark.parametrize(
    ("device", "how", "status"),
    [
        ("cuda:0", "waits", Status.DIFFERS),
        ("cuda:0", "compiles", Status.UNKNOWN),
        ("cuda:0", "moves", Status.UNKNOWN),
        ("cpu", "waits", Status.UNKNOWN),
    ],
)
def test_what_was_compiled_for_a_device_and_does_not_move_hangs(pool, device, how, status):
    """A compiler may take its time, a processor too; and what moves may still come to an end."""
    payload = {"device": device, "how": how}
    outcome = pool.run("standstills:stands", payload, limits=Limits(seconds=6.0))
    assert outcome.ending is Ending.TIMED_OUT
    verdict = verdict_of(outcome, subject="m", backend="inductor")

    assert verdict.status is status, verdict.reasons
    if status is Status.DIFFERS:
        assert verdict.kind == Kind.CRASHES.value
        assert "kernel that never ends" in verdict.reasons[0]
        assert "standstills.py" in verdict.reasons[0]
    else:
        assert "its time limit during 'inductor 1', at " in verdict.reasons[0]


def test_a_process_that_has_said_nothing_stands_nowhere():
    assert standing_in("") is None
    assert standing_in("Timeout is what I print\n") is None
    assert standing_in("Timeout (0:01:00)!\n") is None
