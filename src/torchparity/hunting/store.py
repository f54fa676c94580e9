"""What a campaign knows, in one SQLite file that survives a kill at any moment: programs, finds, bugs."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError

FILE = "hunt.db"
# Programs that have no verdict, each a file with the reason at its head: what the checker cannot say is to be mended.
UNDECIDED = "undecided"
DECIDED = ("same", "differs")
SCHEMA = 1
TABLES = """
    create table facts (name text primary key, value text not null);
    create table programs (
        seed integer primary key, status text not null, kind text not null, severity text not null,
        seconds real not null, features text not null, options text not null, left_out text not null,
        at real not null, reason text not null
    );
    create table finds (
        seed integer primary key, text text not null, options text not null, answer text not null,
        state text not null, small text not null default '', questions integer not null default 0,
        bug text not null default '', note text not null default ''
    );
    create table bugs (
        name text primary key, kind text not null, stage text not null, part text not null, switch text not null,
        severity text not null, text text not null, script text not null, known text not null, title text not null,
        at real not null
    );
"""
# A find is new, then gone (it did not fail again), likely (of a bug that was seen often), settled (with no script:
# unshown), or stuck: settling it failed, and its note says how.
NEW, GONE, LIKELY, SETTLED, UNSHOWN, STUCK = "new", "gone", "likely", "settled", "unshown", "stuck"


@dataclass(frozen=True, kw_only=True)
class Find:
    """A program that differs: its text, how it was compiled, what was said of it, and what became of it."""

    seed: int
    text: str
    options: Mapping[str, Any]
    answer: Mapping[str, Any]
    state: str = NEW
    small: str = ""
    questions: int = 0
    bug: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One root cause: where it lies, the smallest program, the script, and its number upstream where it is known."""

    name: str
    kind: str
    stage: str
    part: str = ""
    switch: Mapping[str, Any] = field(default_factory=dict)
    severity: str = ""
    text: str = ""
    script: str = ""
    known: str = ""
    title: str = ""
    at: float = 0.0


class Store:
    """One campaign's file. Every change is on disk when a call returns."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        place = folder / FILE
        if not create and not place.is_file():
            raise UsageError(f"{folder} holds no hunt", hint="`torchparity hunt --out FOLDER` begins one")
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(place, check_same_thread=False, timeout=30.0)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("pragma journal_mode = wal")
        version = self._connection.execute("pragma user_version").fetchone()[0]
        if version > SCHEMA:
            raise UsageError(
                f"{place} was written by a newer torchparity (schema {version})", hint="update torchparity to read it"
            )
        if version == 0:
            with self._writing() as connection:
                for statement in TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"pragma user_version = {SCHEMA}")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")

    def _rows(self, question: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(question, values).fetchall()

    # --- facts -----------------------------------------------------------------------------------

    def fact(self, name: str, default: str = "") -> str:
        """Return a fact about the campaign."""
        rows = self._rows("select value from facts where name = ?", name)
        return str(rows[0]["value"]) if rows else default

    def set_fact(self, name: str, value: str) -> None:
        """Note a fact about the campaign."""
        with self._writing() as connection:
            connection.execute("insert or replace into facts values (?, ?)", (name, value))

    # --- programs --------------------------------------------------------------------------------

    def add(self, seed: int, answer: Mapping[str, Any], text: str, at: float) -> bool:
        """Keep what was said of a program, and a find where it differs; tell whether it was not there yet."""
        if answer["status"] not in DECIDED and text:
            self._keep_undecided(seed, answer, text)
        with self._writing() as connection:
            values = (
                seed, answer["status"], answer.get("kind", ""), answer.get("severity", ""), answer.get("seconds", 0.0),
                json.dumps(answer.get("features", ())), json.dumps(answer.get("options", {})),
                json.dumps(answer.get("left_out", {})), at, next(iter(answer.get("reasons", ())), ""),
            )  # fmt: skip
            new = connection.execute(f"insert or ignore into programs values ({', '.join('?' * 10)})", values).rowcount
            if new and answer["status"] == "differs":
                connection.execute(
                    "insert or ignore into finds (seed, text, options, answer, state) values (?, ?, ?, ?, ?)",
                    (seed, text, json.dumps(answer.get("options", {})), json.dumps(dict(answer)), NEW),
                )
        return bool(new)

    def _keep_undecided(self, seed: int, answer: Mapping[str, Any], text: str) -> None:
        folder = self.folder / UNDECIDED
        folder.mkdir(exist_ok=True)
        reasons = " ".join("; ".join(answer.get("reasons", ())).split())
        head = f"# {answer['status']}: {reasons}\n# options: {json.dumps(answer.get('options', {}))}\n"
        (folder / f"{seed}.py").write_text(head + text, encoding="utf-8")

    def next_seed(self, first: int) -> int:
        """Return the first seed after all that were judged."""
        found = self._rows("select max(seed) as last from programs")[0]["last"]
        return first if found is None else max(first, int(found) + 1)

    def missing_seeds(self, first: int) -> list[int]:
        """Return seeds before the last that have no answer: their worker was killed with the campaign."""
        held = {int(row["seed"]) for row in self._rows("select seed from programs")}
        return [seed for seed in range(first, max(held, default=first)) if seed not in held]

    def statuses(self) -> Counter[str]:
        """Return how many programs came out how."""
        return Counter(
            {
                row["status"]: row["n"]
                for row in self._rows("select status, count(*) as n from programs group by status")
            }
        )

    def programs(self) -> list[dict[str, Any]]:
        """Return what is known of every program but its text."""
        return [dict(row) for row in self._rows("select * from programs order by seed")]

    def features(self) -> Counter[str]:
        """Return how often each form of line was drawn."""
        found: Counter[str] = Counter()
        for row in self._rows("select features from programs"):
            found.update(json.loads(row["features"]))
        return found

    # --- finds and bugs --------------------------------------------------------------------------

    def finds(self, state: str | None = None) -> list[Find]:
        """Return finds, of one state where it is given, the oldest first."""
        rows = self._rows("select * from finds order by seed")
        found = [
            Find(**{**dict(row), "options": json.loads(row["options"]), "answer": json.loads(row["answer"])})
            for row in rows
        ]
        return [find for find in found if state in (None, find.state)]

    def settle(self, seed: int, state: str, **facts: Any) -> None:
        """Note what became of a find."""
        facts["state"] = state
        columns = ", ".join(f"{name} = ?" for name in facts)
        with self._writing() as connection:
            connection.execute(f"update finds set {columns} where seed = ?", (*facts.values(), seed))

    def add_bug(self, bug: Bug) -> None:
        """Keep a bug, in the place of one of the same name."""
        values = (
            bug.name, bug.kind, bug.stage, bug.part, json.dumps(dict(bug.switch)), bug.severity, bug.text, bug.script,
            bug.known, bug.title, bug.at,
        )  # fmt: skip
        with self._writing() as connection:
            connection.execute(f"insert or replace into bugs values ({', '.join('?' * 11)})", values)

    def bugs(self) -> list[Bug]:
        """Return all bugs, the oldest first."""
        rows = self._rows("select * from bugs order by at")
        return [Bug(**{**dict(row), "switch": json.loads(row["switch"])}) for row in rows]
