"""What a process that died has said: the cause, and not the list of its modules."""

import subprocess
import sys

from torchparity.judge.isolated import FATAL, WORDS, last_words

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


def test_what_is_no_crash_keeps_its_end():
    assert last_words("a" * WORDS + "the end") == ("a" * WORDS + "the end")[-WORDS:]
    assert last_words("") == ""
