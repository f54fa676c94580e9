"""The baseline: a file of known failures, one line for each, that people read and merge.

    "1f0c9a7be2d4" = { target = "models.py:wide", options = "train", leaf = "output", kind = "value", until = 2027-01-31, reason = "..." }

The key is a fingerprint of what fails, where and how; nothing in it changes with the numbers of a run.
"""  # noqa: E501 - a line of the file

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError
from torchparity.fleet.cells import Cell, options_text
from torchparity.fleet.store import Judged, Store
from torchparity.records import Status, Verdict

FILE = "baseline.toml"
HEAD = (
    "# Known failures, one line for each: `torchparity baseline FOLDER --update` adds and drops lines, and keeps what\n"
    "# you write as `reason` and `until`. Lines of different people do not meet: merge them as they are.\n"
)


@dataclass(frozen=True, kw_only=True)
class Known:
    """One failure: what fails (target, options), where (leaf), how (kind, stage); until when it is accepted, why."""

    target: str
    options: str
    leaf: str = ""
    kind: str = ""
    stage: str = ""
    until: date | None = None
    reason: str = ""

    @property
    def fingerprint(self) -> str:
        """What a failure is known by."""
        told = json.dumps([self.target, self.options, self.leaf, self.kind, self.stage])
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    @property
    def place(self) -> tuple[str, str]:
        """What fails, however it does."""
        return self.target, self.options

    def holds(self, today: date) -> bool:
        """Tell whether a failure is still accepted."""
        return self.until is None or today <= self.until


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a sweep says of a baseline. Only what is new, changed or no longer accepted fails.

    `gone` are lines whose cells were judged and agree now; lines of cells that the sweep does not have are left alone.
    """

    new: tuple[Judged, ...] = ()
    changed: tuple[Judged, ...] = ()
    expired: tuple[Judged, ...] = ()
    known: tuple[Judged, ...] = ()
    gone: tuple[Known, ...] = ()

    @property
    def failing(self) -> tuple[Judged, ...]:
        """What is not accepted."""
        return (*self.new, *self.changed, *self.expired)

    def words(self) -> dict[int, str]:
        """Say for each cell that fails what it is to the baseline, by its number."""
        return {cell.id: word for word in ("new", "changed", "expired", "known") for cell in getattr(self, word)}


def failure_of(cell: Judged, *, stage: str = "") -> Known:
    """Return a cell's failure: its first leaf in the order of the model, its kind, the stage that raised."""
    leaf = cell.leaves[0] if cell.leaves and cell.status == Status.DIFFERS.value else ""
    kind = cell.kind if cell.status == Status.DIFFERS.value else cell.status
    return Known(
        target=cell.cell.title,
        options=options_text(cell.cell.options),
        leaf=leaf,
        kind=kind or cell.status,
        stage=stage,
    )


def stage_of(cell: Judged, store: Store) -> str:
    """Return the stage of the compiler that raised, as the verdict tells it; nothing where none did."""
    if cell.status != Status.DIFFERS.value or cell.leaves:
        return ""
    verdict = store.verdict(cell.id)
    return raised_in(verdict) if verdict is not None else ""


def raised_in(verdict: Verdict) -> str:
    """Return the stage of the compiler that raised; nothing where none did."""
    raised = verdict.status is Status.DIFFERS and verdict.failure is not None and not wrong_leaves(verdict)
    return verdict.failure.stage if raised and verdict.failure is not None else ""


def wrong_leaves(verdict: Verdict) -> tuple[str, ...]:
    """Return the leaves that are not the same, in the order of the model."""
    return tuple(leaf.path for leaf in verdict.leaves if leaf.status is not Status.SAME)


def accepted(cell: Cell, verdict: Verdict, known: Sequence[Known], today: date) -> Known | None:
    """Return the line of a baseline that accepts what was said of a cell; None where none does."""
    judged = Judged(
        id=0, cell=cell, status=verdict.status.value, kind=verdict.kind, leaves=wrong_leaves(verdict)
    )  # fmt: skip
    failure = failure_of(judged, stage=raised_in(verdict))
    return next((entry for entry in known if entry.fingerprint == failure.fingerprint and entry.holds(today)), None)


def compare(cells: Iterable[Judged], store: Store, known: Sequence[Known], today: date) -> Comparison:
    """Hold the cells of a sweep against a baseline."""
    listed = {entry.fingerprint: entry for entry in known}
    places = {entry.place for entry in known}
    found: dict[str, list[Judged]] = {"new": [], "changed": [], "expired": [], "known": []}
    seen: set[str] = set()
    judged: set[tuple[str, str]] = set()
    for cell in cells:
        if not cell.status:
            continue
        failure = failure_of(cell, stage=stage_of(cell, store))
        judged.add(failure.place)
        if cell.status == Status.SAME.value:
            continue
        entry = listed.get(failure.fingerprint)
        if entry is not None:
            seen.add(entry.fingerprint)
            found["known" if entry.holds(today) else "expired"].append(cell)
        else:
            found["changed" if failure.place in places else "new"].append(cell)
    gone = [entry for entry in known if entry.fingerprint not in seen and entry.place in judged]
    return Comparison(gone=tuple(gone), **{word: tuple(entries) for word, entries in found.items()})


def updated(
    comparison: Comparison, store: Store, known: Sequence[Known], *, until: date | None, reason: str
) -> list[Known]:
    """Return a baseline that accepts what a sweep has found: new lines added, those that are gone dropped."""
    dropped = {entry.fingerprint for entry in comparison.gone}
    kept = {entry.fingerprint: entry for entry in known if entry.fingerprint not in dropped}
    for cell in comparison.failing:
        failure = failure_of(cell, stage=stage_of(cell, store))
        before = kept.get(failure.fingerprint)
        fields = {name: getattr(failure, name) for name in ("target", "options", "leaf", "kind", "stage")}
        why = reason or (before.reason if before is not None else "") or cell.reason
        kept[failure.fingerprint] = Known(**fields, until=until, reason=why[:160])
    return list(kept.values())


# --- the file ------------------------------------------------------------------------------------


def read_baseline(path: Path) -> list[Known]:
    """Read a baseline; one that is not there knows nothing."""
    if not path.is_file():
        return []
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return [entry_of(key, value) for key, value in table.items()]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} is no baseline: {error}", hint="each line is a fingerprint and a table; `--update` writes them"
        ) from error


def entry_of(key: str, value: dict[str, Any]) -> Known:
    """Return one line of a baseline; its fingerprint must be that of what it says."""
    entry = Known(**value)
    if entry.fingerprint != key:
        raise ValueError(f"{key} is not the fingerprint of {entry.target} {entry.leaf} ({entry.fingerprint})")
    if entry.until is not None and not isinstance(entry.until, date):
        raise ValueError(f"{key}: until = {entry.until!r} is no date")
    return entry


def write_baseline(path: Path, entries: Iterable[Known]) -> None:
    """Write a baseline, ordered by what fails, whole or not at all."""
    lines = [line_of(entry) for entry in sorted(entries, key=lambda entry: (entry.place, entry.leaf, entry.kind))]
    half = path.with_name(f".{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    half.write_text(HEAD + "".join(lines), encoding="utf-8")
    half.replace(path)


def line_of(entry: Known) -> str:
    """Return a failure as its line."""
    said = [("target", entry.target), ("options", entry.options), ("leaf", entry.leaf), ("kind", entry.kind)]
    said += [("stage", entry.stage)] if entry.stage else []
    words = [f"{name} = {quoted(value)}" for name, value in said]
    words += [f"until = {entry.until.isoformat()}"] if entry.until is not None else []
    words += [f"reason = {quoted(entry.reason)}"] if entry.reason else []
    return f'"{entry.fingerprint}" = {{ {", ".join(words)} }}\n'


def quoted(text: str) -> str:
    """Return a text as TOML writes it, in one line."""
    return json.dumps(re.sub(r"\s+", " ", text), ensure_ascii=False)
