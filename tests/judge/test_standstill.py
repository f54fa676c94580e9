"""A process that does not end says where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchparity.judge.isolated import verdict_of
from torchparity.judge.standstill import place_in, without_dumps
from torchparity.records import Status
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        with Pool(workers=2, compilers=False) as workers:
            yield workers


@pytest.mark.parametrize("how", ["waits", "compiles", "moves"])
def test_what_is_stopped_says_where_it_stood(pool, how):
    outcome = pool.run("standstills:stands", {"device": "cuda:0", "how": how}, limits=Limits(seconds=5.0))
    assert outcome.ending is Ending.TIMED_OUT
    verdict = verdict_of(outcome, subject="m", backend="inductor")

    assert verdict.status is Status.UNKNOWN, verdict.reasons
    assert "its time limit during 'inductor 1', at " in verdict.reasons[0]
    assert ("compile_fx.py:2 in " if how == "compiles" else "standstills.py:") in verdict.reasons[0]


def test_what_a_process_said_itself_is_not_lost_among_it(pool):
    outcome = pool.run("standstills:stands", {"device": "cpu", "how": "leaves"}, limits=Limits(seconds=30.0))
    assert "Timeout (" in outcome.output
    verdict = verdict_of(outcome, subject="m", backend="inductor")

    assert verdict.status is Status.DIFFERS
    assert verdict.failure is not None
    assert verdict.failure.traceback.strip() == "this is why"


THREAD = """Thread 0x00007f0 (most recent call first):
  File "/a/b.py", line 3 in waits
  File "/a/c.py", line 4 in run

"""


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("", ""),
        ("Timeout is what I print\n", ""),
        ("Timeout (0:01:00)!\n", ""),
        (f"half a lineTimeout (0:01:00)!\n{THREAD}", "/a/b.py:3 in waits"),
        (f"Timeout (0:01:00)!\n{THREAD * 2}rest", "/a/b.py:3 in waits"),
        (f"Timeout (0:01:00)!\n{THREAD * 100}...\n", ""),
    ],
)
def test_where_it_stood_is_read_from_what_it_printed(output, place):
    assert place_in(output) == place
    assert "Thread" not in without_dumps(output)
