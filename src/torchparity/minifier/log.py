"""The log of a minification: every query before and after it, so that nothing is lost and none is asked twice."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from torchparity.errors import UsageError
from torchparity.minifier.answers import Answer
from torchparity.records import Query
from torchparity.records.strangers import parsed, read_text
from torchparity.records.wire import must_be, record_from

try:
    import fcntl
except ImportError:  # Windows keeps no such locks; there nobody is kept out.
    fcntl = None  # type: ignore[assignment]

NAME = "log.jsonl"
LARGEST_LOG = 1 << 30
# Seconds that no query can want: a month.
LONGEST = 30 * 24 * 3600.0


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
        self._held: BinaryIO | None = None
        if path.exists():
            os.truncate(path, self._read())  # A line that a kill cut short goes.

    def hold(self) -> None:
        """Keep other processes out for as long as this one lives; a kill lets go."""
        if self._held is not None or fcntl is None:
            return
        file = self.path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise UsageError(
                f"another process works in {self.path.parent}", hint="wait for it, or name another folder"
            ) from None
        self._held = file

    def let_go(self) -> None:
        """Let other processes in again."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _read(self) -> int:
        """Take every whole line; return where they end."""
        data = read_text(self.path, largest=LARGEST_LOG).encode()
        whole = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:whole].decode().split("\n")[:-1], 1):
            try:
                self._take(parsed(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"line {number} of {self.path} is not one that torchparity wrote: {type(error).__name__}",
                    hint="begin the minification again in another folder",
                ) from None
        return whole

    def _take(self, entry: Any) -> None:
        must_be(entry, Mapping)
        if entry["event"] == "start":
            self.header = checked_header(entry)
        elif entry["event"] == "asked":
            must_be(entry["query"], int)
            self.asked = max(self.asked, entry["query"])
        elif entry["event"] == "answered":
            must_be(entry["key"], str)
            self.answers[entry["key"]] = record_from(Answer, entry["answer"])
        elif entry["event"] == "fatal":
            must_be(entry["key"], str)
            self.fatal.add(entry["key"])

    def write(self, event: str, **facts: Any) -> None:
        """Add a line; it is with the system when this returns, so that only a fall of the whole machine loses it."""
        line = json.dumps({"event": event, **facts}, separators=(",", ":")) + "\n"
        with self._lock, self.path.open("ab") as file:
            file.write(line.encode())

    def entries(self) -> list[dict[str, Any]]:
        """Return every line."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


def checked_header(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a minification was begun, or raise where that cannot be."""
    must_be(entry["check"], str, type(None))
    must_be(entry["seconds"], float, int)
    must_be(entry["memory"], int, type(None))
    must_be(entry["free"], int)
    if not 0 < entry["seconds"] < LONGEST or entry["free"] < 1:
        raise ValueError("limits that limit nothing")
    return dict(entry)


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
    try:
        log = Log(folder / NAME)
    except (OSError, ValueError) as error:
        raise UsageError(f"the log in {folder} cannot be read: {error}", hint="begin again in another folder") from None
    if not log.header:
        raise UsageError(f"the log in {folder} holds nothing to go on with", hint="remove the folder and begin again")
    return log
