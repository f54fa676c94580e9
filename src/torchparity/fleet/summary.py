"""What a sweep has found, as one record: from the store and the baseline, at any moment, while it goes on too."""

from __future__ import annotations

import ast
import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from torchparity.fleet.baseline import Known, compare, failure_of, stage_of
from torchparity.fleet.cells import options_text
from torchparity.fleet.store import Judged, Store
from torchparity.records import Status, SweepCell, SweepChange, SweepHistory, SweepSummary

# So many earlier sweeps are shown.
EARLIER = 20
SAME = Status.SAME.value


def summary_of(store: Store, known: Sequence[Known], *, today: date | None = None) -> SweepSummary:
    """Return everything that the last sweep of a folder has found so far."""
    cells = store.cells()
    newest = max((cell.environment for cell in cells), default=0)
    judged_last = [cell for cell in cells if cell.environment == newest]
    comparison = compare(judged_last, store, known, today or datetime.now(UTC).date())
    words = comparison.words()
    flaky = flaky_keys(cells)
    earlier = store.rows("select * from all_runs order by id")[:-1][-EARLIER:]
    histories = [store.cells(int(row["id"])) for row in earlier]
    past: dict[tuple[str, int, int], list[str]] = {}
    for judged in histories:
        for cell in judged:
            past.setdefault((cell.cell.key, cell.environment, cell.cell.repeat), []).append(cell.status)
    run = store.last()
    base = str(json.loads(run["facts"]).get("base", "")) if run is not None else ""
    return SweepSummary(
        suite=str(run["suite"]) if run is not None else "",
        began=moment(run["began"] if run is not None else None),
        ended=moment(run["ended"] if run is not None else None),
        cells=tuple(
            told(
                cell,
                store,
                words.get(cell.id, ""),
                base=base,
                flaky=(cell.environment, cell.cell.key) in flaky,
                past=past,
            )
            for cell in cells
        ),
        environments=tuple(store.environments()),
        statuses=dict(Counter(cell.status for cell in cells if cell.status)),
        changes=tuple(changes(cells)),
        gone=tuple(f"{entry.target} {entry.options}: {entry.kind} {entry.leaf}".strip() for entry in comparison.gone),
        history=tuple(
            SweepHistory(
                began=moment(row["began"]),
                statuses=dict(Counter(cell.status for cell in judged if cell.status)),
                seconds=sum(cell.seconds for cell in judged),
            )
            for row, judged in zip(earlier, histories, strict=True)
        ),
    )


def told(
    cell: Judged, store: Store, word: str, *, base: str, flaky: bool, past: dict[tuple[str, int, int], list[str]]
) -> SweepCell:
    """Return a cell as a reader wants it."""
    failure = failure_of(cell, stage=stage_of(cell, store)) if cell.status not in ("", SAME) else None
    finding = dict(cell.finding)
    file, line = user_line(cell, finding, Path(base)) if failure is not None else ("", 0)
    return SweepCell(
        id=cell.id,
        title=cell.cell.title,
        target=cell.cell.target,
        options=options_text(cell.cell.options),
        given=dict(cell.cell.options),
        parameters=dict(cell.cell.parameters),
        environment=cell.environment,
        repeat=cell.cell.repeat,
        status=cell.status,
        kind=cell.kind,
        severity=cell.severity,
        reason=cell.reason,
        seconds=cell.seconds,
        peak=cell.peak,
        labels=cell.cell.labels,
        leaves=cell.leaves,
        fingerprint=failure.fingerprint if failure is not None else "",
        baseline=word,
        flaky=flaky,
        history=tuple(past.get((cell.cell.key, cell.environment, cell.cell.repeat), ())),
        file=file,
        line=line,
        finding=finding,
    )


def user_line(cell: Judged, finding: Mapping[str, Any], base: Path) -> tuple[str, int]:
    """Return the user's line: that of the operation where a diagnosis has found it, else where the target is made."""
    file, _, line = str(finding.get("place", "")).rpartition(":")
    if file and line.isdigit():
        return seen_from_here(Path(file)), int(line)
    place, _, name = cell.cell.target.rpartition(":")
    if not place.endswith(".py"):
        return "", 0
    return seen_from_here(base / place), defined_at(base / place, name)


def seen_from_here(path: Path) -> str:
    """Return a path as seen from the current folder, where it lies below it."""
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)


@functools.lru_cache(maxsize=1024)
def defined_at(path: Path, name: str) -> int:
    """Return the line on which a file defines a name; its first where it cannot be told."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return 1
    return next((node.lineno for node in tree.body if name in names_of(node)), 1)


def names_of(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a file defines."""
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {str(getattr(node, "name", ""))}


def place_of(cell: Judged) -> tuple[int, str]:
    """Return what repetitions of a cell have in common."""
    return cell.environment, cell.cell.key


def flaky_keys(cells: Iterable[Judged]) -> set[tuple[int, str]]:
    """Return the cells whose repetitions came out differently."""
    seen: dict[tuple[int, str], set[tuple[str, str]]] = {}
    for cell in cells:
        if cell.status:
            seen.setdefault(place_of(cell), set()).add((cell.status, cell.kind))
    return {key for key, ways in seen.items() if len(ways) > 1}


def changes(cells: Sequence[Judged]) -> Iterable[SweepChange]:
    """Yield what is different between the first environment of a sweep and the last; nothing where there is one."""
    last = max((cell.environment for cell in cells), default=0)
    before = {(cell.cell.key, cell.cell.repeat): cell for cell in cells if cell.environment == 0}
    for cell in cells if last else ():
        other = before.get((cell.cell.key, cell.cell.repeat))
        if cell.environment != last or other is None or not cell.status or not other.status:
            continue
        yield SweepChange(
            title=cell.cell.title,
            options=options_text(cell.cell.options),
            word=changed(other, cell),
            before=other.status,
            after=cell.status,
            slower=cell.seconds / other.seconds if other.seconds else 1.0,
            reason=cell.reason if cell.status != SAME else other.reason,
            since=str(cell.finding.get("since", "")),
        )


def changed(before: Judged, after: Judged) -> str:
    """Say what became of a cell between two environments."""
    if (before.status, before.kind) == (after.status, after.kind):
        return "same"
    if after.status == SAME:
        return "cured"
    return "new failure" if before.status == SAME else "other failure"


def moment(seconds: float | None) -> str:
    """Return a time as text, to the second; nothing where it has not come."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
