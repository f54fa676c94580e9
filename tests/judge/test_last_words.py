"""What a process that died has said: the cause, and not the list of its modules."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from torchparity.judge.isolated import FATAL, WORDS, last_words, verdict_of
from torchparity.records import Progress, Status
from torchparity.workers.outcome import Ending, Outcome

DIES = """
import os, torch
os.write(2, b"x" * 9000 + b"\\nterminate: no such kernel\\n")
os.abort()
"""


def test_a_crash_tells_its_cause():
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", DIES],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = ended.stdout.decode()
    assert ended.returncode < 0
    assert "Extension modules" in said
    told = last_words(said)
    assert "terminate: no such kernel" in told
    assert FATAL in told
    assert "Extension modules" not in told
    assert len(told) <= WORDS


@pytest.mark.parametrize(("device", "told"), [("cpu", "cpu"), ("cuda:0", "cuda:0")])
def test_a_process_that_died_says_where_it_ran(device, told):
    """Whoever asks may have no such device."""
    phase = json.dumps(asdict(Progress(run=3, runs=5, name="inductor 1", candidate=True, device=device)))
    died = Outcome(ending=Ending.KILLED, signal=11, phase=phase)
    verdict = verdict_of(died, subject="m", backend="inductor")
    assert verdict.status is Status.DIFFERS
    assert verdict.environment["device"] == told


def test_what_is_no_crash_keeps_its_end():
    assert last_words("a" * WORDS + "the end") == ("a" * WORDS + "the end")[-WORDS:]
    assert last_words("") == ""
