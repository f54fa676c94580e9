"""`run`: the verdict on one bundle, in a clean process."""

from __future__ import annotations

from pathlib import Path

from torchparity.judge.isolated import run_in
from torchparity.records import ProgressCallback, Verdict
from torchparity.verbs.asking import using
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool


def run_bundle(
    folder: Path,
    *,
    pool: Pool | None = None,
    limits: Limits | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Judge a bundle in a clean process."""
    with using(pool) as workers:
        return run_in(workers, folder, limits=limits, progress=progress)
