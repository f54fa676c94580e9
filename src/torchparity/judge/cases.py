"""From a case to a verdict: the bundle's own script makes the model, the oracle judges it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchparity.compilers.candidates import Candidate, Compiled
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import settings_of
from torchparity.records import ProgressCallback, Verdict
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case
from torchparity.repro.opening import Opened, open_case
from torchparity.run.subject import Subject


def judge_case(
    case: Case,
    *,
    path: Path | None = None,
    progress: ProgressCallback | None = None,
    candidate: Candidate | None = None,
) -> Verdict:
    """Judge a case in this process; another candidate than its own may be held against it."""
    opened = open_case(case, path)
    return renamed(oracle_for_opened(case, opened, progress, candidate).judge(), opened.input_names())


def oracle_of(case: Case, *, path: Path | None = None) -> Oracle:
    """Return what judges a case."""
    return oracle_for_opened(case, open_case(case, path), None, None)


def oracle_for_opened(
    case: Case, opened: Opened, progress: ProgressCallback | None, candidate: Candidate | None
) -> Oracle:
    """Return what judges a case that is open already."""
    model, inputs, random = opened.make()
    subject = Subject(model, tuple(inputs), name=case.name)
    settings = settings_of(case.request, progress=progress)
    return Oracle(subject, opened.plan(random), candidate or Compiled(opened.recipe()), settings)


def renamed(verdict: Verdict, names: Sequence[str]) -> Verdict:
    """Return a verdict that calls inputs by their names in the graph."""
    leaves = tuple(replace(leaf, path=named(leaf.path, names)) for leaf in verdict.leaves)
    return replace(verdict, leaves=leaves, reasons=tuple(named(reason, names) for reason in verdict.reasons))


def named(text: str, names: Sequence[str]) -> str:
    """Return a text that calls inputs by their names."""
    return re.sub(r"\bargs\[(\d+)\]", lambda found: names[int(found[1])], text)


def judge_bundle(folder: Path, *, progress: ProgressCallback | None = None) -> Verdict:
    """Read a bundle and judge it in this process, with its own `repro.py`."""
    return judge_case(read_bundle(folder), path=folder, progress=progress)
