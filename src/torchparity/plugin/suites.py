"""A suite as tests (`pytest suite.toml`): every cell is one; what the baseline accepts is an expected failure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from torchparity.errors import ParityError
from torchparity.fleet.baseline import FILE, accepted, read_baseline
from torchparity.fleet.cells import Cell, options_text
from torchparity.fleet.executors import Local
from torchparity.fleet.suite import read_suite
from torchparity.records import Status, Verdict
from torchparity.report.terminal import plain_text

local_key = pytest.StashKey[dict[Path, Local]]()


class NotSame(Exception):
    """A cell that is not the same; the text is what the terminal would show."""


class SuiteFile(pytest.File):
    """A suite that pytest was given."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each cell."""
        try:
            cells = read_suite(self.path)
        except ParityError as error:
            raise self.CollectError(f"{error.message}\nhint: {error.hint}") from error
        for cell in cells:
            yield CellItem.from_parent(self, name=f"{cell.title}[{options_text(cell.options)}]", cell=cell)


class CellItem(pytest.Item):
    """One cell of a suite."""

    def __init__(self, *, cell: Cell, **rest: Any) -> None:
        super().__init__(**rest)
        self.cell = cell

    def runtest(self) -> None:
        """Judge the cell; fail where it is not the same, and no baseline accepts that."""
        verdict = workers_of(self).submit(self.cell).result().verdict
        self.user_properties.append(("parity.status", verdict.status.value))
        if verdict.status is Status.SAME:
            return
        known = accepted(self.cell, verdict, read_baseline(baseline_of(self)), datetime.now(UTC).date())
        if known is not None:
            pytest.xfail(f"{known.fingerprint} is in the baseline: {known.reason}")
        raise NotSame(told(verdict))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show what was found, not where this plugin raised it."""
        return str(excinfo.value) if excinfo.errisinstance(NotSame) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Say what the test is called."""
        return self.path, None, self.name


def told(verdict: Verdict) -> str:
    """Return a verdict as text."""
    return plain_text(verdict)


def baseline_of(item: pytest.Item) -> Path:
    """Return where the baseline of a suite lies."""
    given = item.config.getoption("parity_baseline")
    return Path(given) if given else item.path.with_name(FILE)


def workers_of(item: pytest.Item) -> Local:
    """Return the workers that judge the cells of a suite; they end with the run of pytest."""
    held = item.config.stash.setdefault(local_key, {})
    base = item.path.parent
    if base not in held:
        held[base] = Local(base, workers=1)
        item.config.add_cleanup(held[base].close)
    return held[base]
