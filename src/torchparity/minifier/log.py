"""The log of a minification: every query before and after it, so that nothing is lost and none is asked twice."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError
from torchparity.minifier.answers import Answer
from torchparity.records import Query
from torchparity.records.wire import record_from

NAME = "log.jsonl"


class Log:
    """A file of JSON lines, and the answers that it already holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {}
        self.header: dict[str, Any] = {}
        # What took the process of the search along when it was run eagerly.
        self.fatal: set[str] = set()
        self.asked = 0
        self._lock = threading.Lock()
        if path.exists():
            os.truncate(path, self._read())  # A line that a kill cut short goes.

    def _read(self) -> int:
        """Take every whole line; return where they end."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].decode("utf-8").splitlines():
            entry = json.loads(line)
            if entry["event"] == "start":
                self.header = entry
            elif entry["event"] == "asked":
                self.asked = max(self.asked, entry["query"])
            elif entry["event"] == "answered":
                self.answers[entry["key"]] = record_from(Answer, entry["answer"])
            elif entry["event"] == "fatal":
                self.fatal.add(entry["key"])
        return whole

    def write(self, event: str, **facts: Any) -> None:
        """Add a line; it is with the system when this returns, so that only a fall of the whole machine loses it."""
        line = json.dumps({"event": event, **facts}, separators=(",", ":")) + "\n"
        with self._lock, self.path.open("ab") as file:
            file.write(line.encode())

    def entries(self) -> list[dict[str, Any]]:
        """Return every line."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


def curve_of(entries: Iterable[Mapping[str, Any]]) -> tuple[Query, ...]:
    """Return every query of a log in order: how large the part was, whether it failed, whether it was adopted."""
    asked: dict[int, Mapping[str, Any]] = {}
    fails: dict[str, bool | None] = {}
    adopted: set[str] = set()
    for entry in entries:
        if entry["event"] == "asked":
            asked[entry["query"]] = entry
        elif entry["event"] == "answered":
            answer = entry["answer"]
            fails[entry["key"]] = bool(answer["signatures"]) or (False if answer["same"] else None)
        elif entry["event"] == "adopted" and "key" in entry:
            adopted.add(entry["key"])
    return tuple(
        Query(
            number=number,
            operations=entry["operations"],
            stage=entry["stage"],
            fails=fails.get(entry["key"]),
            adopted=entry["key"] in adopted,
        )
        for number, entry in sorted(asked.items())
    )


def resumed(folder: Path) -> Log:
    """Return the log of a minification that was begun in a folder, or refuse."""
    if not (folder / NAME).is_file():
        raise UsageError(
            f"no minification was begun in {folder}", hint="begin one with `torchparity minify CASE --out FOLDER`"
        )
    log = Log(folder / NAME)
    if not log.header:
        raise UsageError(f"the log in {folder} holds nothing to go on with", hint="remove the folder and begin again")
    return log
