"""What sweeps know, in one SQLite file that survives a kill at any moment.

    all_runs          one row for each sweep in this folder
    all_environments  what a sweep ran in: interpreter, torch, machine
    all_cells         what was to be checked, in which environment, how often
    all_verdicts      one row for each cell that was judged
    all_leaves        the leaves that are not the same
    all_findings      what a diagnosis says of a cell

The views without `all_` show the last sweep; `cells` has the verdict beside it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchparity.errors import ResourceError, UsageError
from torchparity.fleet.cells import Cell
from torchparity.records import Status, Verdict
from torchparity.records.wire import plain_data, record_from

FILE = "sweep.db"
# Each migration makes a file of the version before it one of its own; their number is the version.
MIGRATIONS: tuple[str, ...] = (
    """
    create table all_runs (
        id integer primary key, suite text not null, began real not null, ended real, facts text not null
    );
    create table all_environments (
        id integer primary key, run integer not null references all_runs, place integer not null,
        python text not null, facts text not null, unique (run, place)
    );
    create table all_cells (
        id integer primary key, run integer not null references all_runs,
        environment integer not null references all_environments, key text not null, target text not null,
        title text not null, parameters text not null, options text not null, labels text not null,
        timeout real not null, memory integer, repeat integer not null,
        unique (run, environment, key, repeat)
    );
    create table all_verdicts (
        cell integer primary key references all_cells, status text not null, kind text not null,
        severity text not null, reason text not null, seconds real not null, peak integer, at real not null,
        data text not null
    );
    create table all_leaves (
        cell integer not null references all_cells, path text not null, role text not null, status text not null,
        kind text not null, score real, data text not null, primary key (cell, path)
    );
    create table all_findings (
        cell integer primary key references all_cells, folder text not null, stage text not null, part text not null,
        place text not null, data text not null
    );
    create view runs as select * from all_runs where id = (select max(id) from all_runs);
    create view environments as select * from all_environments where run = (select max(id) from all_runs);
    create view cells as
        select c.id, c.key, c.target, c.title, c.parameters, c.options, c.labels, c.repeat, e.place as environment,
            v.status, v.kind, v.severity, v.reason, v.seconds, v.peak, v.at, c.timeout, c.memory
        from all_cells c join all_environments e on e.id = c.environment left join all_verdicts v on v.cell = c.id
        where c.run = (select max(id) from all_runs);
    create view verdicts as select v.* from all_verdicts v join cells c on c.id = v.cell;
    create view leaves as select l.* from all_leaves l join cells c on c.id = l.cell;
    create view findings as select f.* from all_findings f join cells c on c.id = f.cell;
    """,
)
BUSY_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A cell of a sweep as it is stored: its number, in which of the environments, and what was said of it so far."""

    id: int
    cell: Cell
    environment: int = 0
    status: str = ""
    kind: str = ""
    severity: str = ""
    reason: str = ""
    seconds: float = 0.0
    peak: int = 0
    leaves: tuple[str, ...] = ()
    finding: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """The file of one folder. Every change is on disk when a call returns."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder, self.place = folder, folder / FILE
        if not create and not self.place.is_file():
            raise UsageError(f"{folder} holds no sweep", hint="`torchparity sweep SUITE --out FOLDER` begins one")
        with telling(self.place):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = threading.RLock()
            self._connection = sqlite3.connect(
                self.place, check_same_thread=False, timeout=BUSY_SECONDS, isolation_level=None
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("pragma journal_mode = wal")
            # A kill loses nothing so; only a power cut may cost the last verdicts, which are then judged again.
            self._connection.execute("pragma synchronous = normal")
            self._connection.execute("pragma foreign_keys = on")
            self._migrate()

    def _migrate(self) -> None:
        version = int(self._connection.execute("pragma user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise UsageError(
                f"{self.place} was written by a newer torchparity (schema {version}, this one knows {len(MIGRATIONS)})",
                hint="update torchparity to read it",
            )
        for number in range(version, len(MIGRATIONS)):
            with self.writing() as connection:
                for statement in MIGRATIONS[number].split(";"):
                    connection.execute(statement)
                connection.execute(f"pragma user_version = {number + 1}")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Change the file: all of what is done inside, or none."""
        with self._lock, telling(self.place):
            self._connection.execute("begin immediate")
            try:
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    def rows(self, question: str, *values: Any) -> list[sqlite3.Row]:
        """Ask the file."""
        with self._lock, telling(self.place):
            return self._connection.execute(question, values).fetchall()

    # --- a sweep ---------------------------------------------------------------------------------

    def begin(
        self, suite: str, pythons: Sequence[str], cells: Sequence[Cell], facts: Mapping[str, Any], at: float
    ) -> int:
        """Begin a sweep: every cell, in each environment, waits for its verdict."""
        with self.writing() as connection:
            run = connection.execute(
                "insert into all_runs (suite, began, facts) values (?, ?, ?)", (suite, at, json.dumps(dict(facts)))
            ).lastrowid
            for place, python in enumerate(pythons):
                environment = connection.execute(
                    "insert into all_environments (run, place, python, facts) values (?, ?, ?, '{}')",
                    (run, place, python),
                ).lastrowid
                connection.executemany(
                    "insert into all_cells (run, environment, key, target, title, parameters, options, labels, timeout,"
                    " memory, repeat) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(run, environment, *columns(cell)) for cell in cells],
                )
        assert run is not None
        return run

    def last(self) -> sqlite3.Row | None:
        """Return the row of the last sweep; None where there is none yet."""
        found = self.rows("select * from runs")
        return found[0] if found else None

    def end(self, at: float) -> None:
        """Note that the last sweep is done."""
        with self.writing() as connection:
            connection.execute("update all_runs set ended = ? where id = (select max(id) from all_runs)", (at,))

    def again(self, statuses: Sequence[str]) -> int:
        """Forget the verdicts of the last sweep that came out so, to have them judged again; return how many."""
        marks = ", ".join("?" * len(statuses))
        with self.writing() as connection:
            found = [
                row["id"] for row in connection.execute(f"select id from cells where status in ({marks})", [*statuses])
            ]
            for table in ("all_leaves", "all_findings", "all_verdicts"):
                connection.executemany(f"delete from {table} where cell = ?", [(cell,) for cell in found])
            connection.execute("update all_runs set ended = null where id = (select max(id) from all_runs)")
        return len(found)

    def pythons(self) -> list[str]:
        """Return the interpreters of the last sweep."""
        return [str(row["python"]) for row in self.rows("select python from environments order by place")]

    def set_environment(self, place: int, facts: Mapping[str, Any]) -> None:
        """Note what an environment of the last sweep is."""
        with self.writing() as connection:
            connection.execute(
                "update all_environments set facts = ? where place = ? and run = (select max(id) from all_runs)",
                (json.dumps(dict(facts)), place),
            )

    def environments(self) -> list[dict[str, Any]]:
        """Return what is known of the environments of the last sweep."""
        rows = self.rows("select * from environments order by place")
        return [{"python": row["python"], **json.loads(row["facts"])} for row in rows]

    # --- cells -----------------------------------------------------------------------------------

    def cells(self, run: int | None = None) -> list[Judged]:
        """Return every cell of a sweep (the last one), with what was said of it."""
        question = """
            select c.*, e.place, v.status, v.kind, v.severity, v.reason, v.seconds, v.peak, f.data as finding
            from all_cells c join all_environments e on e.id = c.environment
            left join all_verdicts v on v.cell = c.id left join all_findings f on f.cell = c.id
            where c.run = coalesce(?, (select max(id) from all_runs)) order by c.id
        """
        wrong: dict[int, list[str]] = {}
        paths = "select cell, path from all_leaves where cell in (select id from all_cells where run = coalesce(?, " \
            "(select max(id) from all_runs))) order by rowid"  # fmt: skip
        for row in self.rows(paths, run):
            wrong.setdefault(row["cell"], []).append(row["path"])
        return [judged(row, tuple(wrong.get(row["id"], ()))) for row in self.rows(question, run)]

    def waiting(self) -> list[Judged]:
        """Return the cells of the last sweep that have no verdict."""
        return [cell for cell in self.cells() if not cell.status]

    def add(self, cell: int, verdict: Verdict, at: float, *, peak: int = 0) -> bool:
        """Keep the verdict on a cell; tell whether it was the first. A second one is not kept."""
        data = plain_data(verdict)
        leaves = data.pop("leaves")
        values = (
            cell, verdict.status.value, verdict.kind, verdict.severity.value, next(iter(verdict.reasons), ""),
            verdict.seconds, peak or None, at, json.dumps(data),
        )  # fmt: skip
        with self.writing() as connection:
            new = connection.execute(
                f"insert or ignore into all_verdicts values ({', '.join('?' * 9)})", values
            ).rowcount
            if new:
                connection.executemany(
                    "insert or ignore into all_leaves values (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (cell, leaf.path, leaf.role, leaf.status.value, leaf.kind, leaf.score, json.dumps(told))
                        for leaf, told in zip(verdict.leaves, leaves, strict=True)
                        if leaf.status is not Status.SAME
                    ],
                )
        return bool(new)

    def verdict(self, cell: int) -> Verdict | None:
        """Return the verdict on a cell, with the leaves that are not the same."""
        rows = self.rows("select data from all_verdicts where cell = ?", cell)
        if not rows:
            return None
        leaves = self.rows("select data from all_leaves where cell = ? order by rowid", cell)
        data = {**json.loads(rows[0]["data"]), "leaves": [json.loads(leaf["data"]) for leaf in leaves]}
        return record_from(Verdict, data)

    def add_finding(self, cell: int, finding: Mapping[str, Any]) -> None:
        """Keep what a diagnosis says of a cell: folder, stage, part, place; and whatever else."""
        values = [str(finding.get(name, "")) for name in ("folder", "stage", "part", "place")]
        with self.writing() as connection:
            connection.execute(
                "insert or replace into all_findings values (?, ?, ?, ?, ?, ?)",
                (cell, *values, json.dumps(dict(finding))),
            )

    def expected(self) -> dict[str, tuple[float, int]]:
        """Return how long each cell took when it was last judged, in any sweep, and the memory that it took."""
        question = "select c.key, v.seconds, v.peak from all_verdicts v join all_cells c on c.id = v.cell order by v.at"
        return {row["key"]: (float(row["seconds"]), int(row["peak"] or 0)) for row in self.rows(question)}


def columns(cell: Cell) -> tuple[Any, ...]:
    """Return a cell as the columns of its row."""
    return (
        cell.key, cell.target, cell.title, json.dumps(dict(cell.parameters), sort_keys=True),
        json.dumps(dict(cell.options), sort_keys=True), json.dumps(list(cell.labels)), cell.seconds, cell.memory,
        cell.repeat,
    )  # fmt: skip


def judged(row: sqlite3.Row, leaves: tuple[str, ...]) -> Judged:
    """Return a row as a cell with what was said of it."""
    cell = Cell(
        target=row["target"],
        parameters=json.loads(row["parameters"]),
        options=json.loads(row["options"]),
        seconds=row["timeout"],
        memory=row["memory"],
        labels=tuple(json.loads(row["labels"])),
        repeat=row["repeat"],
    )
    said = {name: row[name] or "" for name in ("status", "kind", "severity", "reason")}
    return Judged(
        id=row["id"], cell=cell, environment=row["place"], seconds=row["seconds"] or 0.0, peak=row["peak"] or 0,
        leaves=leaves, finding=json.loads(row["finding"]) if row["finding"] else {}, **said,
    )  # fmt: skip


@contextmanager
def telling(place: Path) -> Iterator[None]:
    """Say what is wrong with a file, or with the disk that it lies on."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        full = "full" in str(error) or "disk I/O" in str(error)
        if full:
            raise ResourceError(
                f"{place} cannot be written: {error}", hint="make room, then `torchparity sweep --resume` goes on"
            ) from error
        raise UsageError(
            f"{place} cannot be used: {error}", hint="name a folder that `torchparity sweep` wrote"
        ) from error
    except OSError as error:
        raise ResourceError(
            f"{place} cannot be written: {os.strerror(error.errno or 0)}", hint="make room, or name another folder"
        ) from error


def query(folder: Path, question: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Ask the file of a folder, which is opened read-only; return the names of the columns and the rows."""
    place = folder / FILE
    if not place.is_file():
        raise UsageError(f"{folder} holds no sweep", hint="`torchparity sweep SUITE --out FOLDER` begins one")
    try:
        connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("pragma query_only = on")
            found = connection.execute(question)
            return [column[0] for column in found.description or ()], found.fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UsageError(
            f"{error}", hint="tables: cells, verdicts, leaves, findings, environments, runs; all_... for every sweep"
        ) from error
