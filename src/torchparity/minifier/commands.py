"""A command of the user's that decides about a bundle in the place of the oracle."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path

from torchparity.minifier.answers import Answer
from torchparity.records import Signature
from torchparity.workers.outcome import Limits
from torchparity.workers.processes import wait_or_kill

CHECK = Signature(kind="check")
INTERESTING, NOT_INTERESTING = 0, 1


def run_check(command: str, path: Path, limits: Limits) -> Answer:
    """Let the user's command decide about a bundle."""
    started = time.monotonic()
    process = subprocess.Popen(
        command.replace("{}", shlex.quote(str(path))),
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    code = wait_or_kill(process, limits.seconds)
    return Answer(
        signatures=(CHECK,) if code == INTERESTING else (),
        same=code == NOT_INTERESTING,
        seconds=time.monotonic() - started,
    )
