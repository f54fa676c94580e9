"""`report`, of a hunt or of a sweep: what its folder holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from torchparity.errors import UsageError
from torchparity.fleet import baseline as baselines
from torchparity.fleet.store import FILE as SWEEP
from torchparity.fleet.store import Store as SweepStore
from torchparity.fleet.summary import summary_of as sweep_summary
from torchparity.hunting.store import FILE, Store
from torchparity.hunting.summary import summary_of
from torchparity.records import HuntSummary, SweepSummary
from torchparity.records.wire import plain_data, record_from


def hunt_in(folder: Path) -> HuntSummary | None:
    """Return what the hunt in a folder has found so far; None where it holds no hunt. It may still go on."""
    if not (folder / FILE).is_file():
        return None
    try:
        store = Store(folder)
        try:
            # Through plain data: a file from elsewhere may hold anything, and a field of another kind is refused.
            return record_from(HuntSummary, plain_data(summary_of(store)))
        finally:
            store.close()
    except (sqlite3.Error, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{folder / FILE} cannot be read: {type(error).__name__}: {str(error)[:200]}",
            hint="name a folder that `torchparity hunt` wrote; `torchparity hunt --out FOLDER` begins another one",
        ) from error


def baseline_place(folder: Path, given: str | Path | None) -> Path:
    """Return where the baseline of a folder lies."""
    return Path(given) if given is not None else folder / baselines.FILE


def sweep_in(folder: Path, baseline: str | Path | None = None) -> SweepSummary | None:
    """Return what the last sweep in a folder has found so far; None where it holds none. It may still go on."""
    if not (folder / SWEEP).is_file():
        return None
    store = SweepStore(folder)
    try:
        return sweep_summary(store, baselines.read_baseline(baseline_place(folder, baseline)))
    finally:
        store.close()
