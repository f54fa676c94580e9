"""`report`, of a hunt: what its folder holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from torchparity.errors import UsageError
from torchparity.hunting.store import FILE, Store
from torchparity.hunting.summary import summary_of
from torchparity.records import HuntSummary
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
