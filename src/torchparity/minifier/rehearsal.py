"""A script that will probably be the last, run while a search still asks: three cold runs take long on two cores."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torchparity.minifier.delivery import VERIFICATIONS, ColdRun, run_cold, stopped
from torchparity.repro.source import SCRIPT

# A process that is being started is looked for again after this, to be stopped; in seconds.
PAUSE = 0.02


class Rehearsal:
    """One script that is run ahead, as often as it is to be verified; each run gives way to those that ask."""

    def __init__(self, probes: Path | None) -> None:
        self.probes = probes
        self.text = ""
        self._runs: list[Future[ColdRun]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(VERIFICATIONS)

    def begin(self, text: str) -> None:
        """Run a script, where none was run before."""
        if not self._runs:
            self.text = text
            self._runs = [self._threads.submit(self._cold) for _ in range(VERIFICATIONS)]

    def of(self, text: str) -> Sequence[Future[ColdRun]]:
        """Return the runs of a script, where it is the one; those of another one are stopped."""
        if self._runs and text != self.text:
            self.end()
        return self._runs if text == self.text else []

    def end(self) -> None:
        """Stop what still runs, and what is just being started; nobody wants it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while not all(run.done() for run in self._runs):
            stopped(self._started)
            time.sleep(PAUSE)

    def _cold(self) -> ColdRun:
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            script, cache = Path(name) / SCRIPT, Path(name) / "cache"
            script.write_text(self.text, encoding="utf-8")
            if self.probes is not None:
                shutil.copytree(self.probes, cache)
            return run_cold(script, str(cache), self._started)
