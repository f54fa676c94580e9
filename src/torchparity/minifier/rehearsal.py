"""A script that will probably be the last, run while a search still asks: three cold runs take long on two cores."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torchparity.minifier.delivery import ColdRun, run_cold, stopped
from torchparity.repro.source import SCRIPT


class Rehearsal:
    """One script that was run ahead, in a process of its own."""

    def __init__(self, probes: Path | None) -> None:
        self.probes = probes
        self.text = ""
        self._run: Future[ColdRun] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(1)

    def begin(self, text: str) -> None:
        """Run a script, where none was run before."""
        if self._run is None:
            self.text = text
            self._run = self._threads.submit(self._cold)

    def of(self, text: str) -> Future[ColdRun] | None:
        """Return the run of a script, where it is the one; another one is stopped."""
        if self._run is not None and text != self.text:
            self.end()
        return self._run if text == self.text else None

    def end(self) -> None:
        """Stop what still runs; nobody wants it."""
        stopped(self._started)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _cold(self) -> ColdRun:
        with tempfile.TemporaryDirectory(prefix="torchparity-") as name:
            script, cache = Path(name) / SCRIPT, Path(name) / "cache"
            script.write_text(self.text, encoding="utf-8")
            if self.probes is not None:
                shutil.copytree(self.probes, cache)
            return run_cold(script, str(cache), self._started)
