"""A bundle as it lies on a disk, seen without torch and without running anything: its files are what was written.

`show` needs no more; `read_bundle` goes on from here.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity.compare.checksum import fingerprint_of
from torchparity.errors import BundleError
from torchparity.records.strangers import parsed, read_json, read_text
from torchparity.records.wire import must_be
from torchparity.repro.seal import is_ours

SCRIPT = "repro.py"
SCHEMA = 2
FACTS, TENSORS = "case.json", "tensors.safetensors"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.\-]*")
USER_FILE = re.compile(r"[A-Za-z_]\w*\.py")
AGAIN = "copy or capture it again; nothing of it was run"
# The sections of a script.
GRAPH, INPUTS = "# --- the graph ", "# --- its inputs "
# What makes a case the case that it is.
IDENTITY = ("level", "direction", "graph", "inputs", "constants", "random", "storages", "request", "files")
LARGEST_HEADER = 100_000_000
# A file may say that it holds so many bytes more than it does: some file systems pack zeros.
LARGEST_HOLE = 1 << 28
SECTOR = 512


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The bytes of a storage in the file of a bundle: a dtype to show them in, from where to where, their digest."""

    code: str
    begin: int
    end: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a bundle holds, all of it as it was written, and whether it is ours.

    `files` are the modules that it brings, `storages` the bytes of its tensors in their file.
    """

    folder: Path
    facts: Mapping[str, Any]
    graph: str
    files: Mapping[str, str]
    storages: Sequence[Stored]
    ours: bool


def look_at(folder: Path) -> Look:
    """Return what a bundle holds, after checking that every file is what was written."""
    folder = located(Path(folder))
    facts = read_facts(folder)
    try:
        script = read_checked(folder / SCRIPT, facts["script"])
        files = {name: read_checked(folder / name, digest) for name, digest in facts["files"].items()}
        graph = graph_section(script)
        identity = {name: facts[name] for name in IDENTITY}
        identity["graph"] = hashlib.sha256(graph.encode()).hexdigest()
        storages = stored_in(folder / TENSORS, len(facts["storages"]))
        identity["storages"] = [
            {**entry, "bytes": stored.end - stored.begin, "fingerprint": stored.digest}
            for entry, stored in zip(facts["storages"], storages, strict=True)
        ]
        digest = digest_of(identity)
        check_shown(facts)
    except BundleError:
        raise
    except (Exception, RecursionError, MemoryError) as error:  # noqa: BLE001 - whatever strange data lead to
        raise BundleError(f"{folder / FACTS} does not make a case: {told_by(error)}", hint=AGAIN) from None
    if digest != facts["digest"]:
        raise BundleError(f"{folder} is not the case that was written: its digest differs", hint=AGAIN)
    ours = is_ours(facts["check"], facts.get("seal"))
    return Look(folder=folder, facts=facts, graph=graph, files=files, storages=storages, ours=ours)


def check_shown(facts: Mapping[str, Any]) -> None:
    """Raise where what is shown is not of the kind that it is shown as."""
    for name in ("name", "level", "direction", "digest"):
        must_be(facts[name], str)
    must_be(facts["compute_nodes"], int)
    for name in ("origin", "environment", "request"):
        must_be(facts[name], Mapping)
    for line in facts["origin"].get("lines") or ():
        must_be(line, str)
    must_be(facts["origin"].get("after") or {}, Mapping)
    must_be(facts["signature"] or {}, Mapping)
    backend = facts["request"]["backend"]
    must_be(backend["expression"], str)
    for line in backend["imports"]:
        must_be(line, str)
    for name, value in facts["inputs"]:
        must_be(name, str)
        must_be(value, Mapping)
        must_be(value["kind"], str)


def stored_in(path: Path, count: int) -> list[Stored]:
    """Return the storages of a file, by number; there must be as many as are told of."""
    header = read_header(path)
    if set(header) != {str(number) for number in range(count)}:
        raise BundleError(
            f"{path.name} holds {len(header)} storages and case.json tells of {count}",
            hint="the two files are not of one case; copy the bundle again",
        )
    if not count:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        whole = memoryview(mapped)
        try:
            return [
                Stored(code=code, begin=begin, end=end, digest=fingerprint_of(whole[begin:end]))
                for code, begin, end in (header[str(number)] for number in range(count))
            ]
        finally:
            whole.release()


def located(folder: Path) -> Path:
    """Return the folder of the bundle: a minification keeps its smallest case in a folder inside its own."""
    inside = folder / "case"
    return inside if not (folder / FACTS).exists() and (inside / FACTS).is_file() else folder


def check_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of everything in `case.json` but itself and who made it."""
    rest = {key: value for key, value in facts.items() if key not in ("check", "seal")}
    return digest_of(rest)


def digest_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def graph_section(text: str) -> str:
    """Return the graph's source out of the text of a `repro.py`; raises ValueError where there is none."""
    start = text.index("\n", text.index(f"\n{GRAPH}") + 1) + 1
    end = min(place for place in (text.find("\nclass Bound(", start), text.index(f"\n{INPUTS}", start)) if place >= 0)
    return text[start:end].strip("\n") + "\n"


def read_header(path: Path) -> dict[str, tuple[str, int, int]]:
    """Return dtype, begin and end in the file of every storage, or say what is wrong with the file."""
    found = path.stat()
    size = found.st_size
    if size > LARGEST_HOLE + 2 * found.st_blocks * SECTOR:
        raise BundleError(
            f"{path.name} says that it holds {size} bytes and holds {found.st_blocks * SECTOR}",
            hint="it is no file that torchparity wrote; copy the bundle again",
        )
    with path.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size - 8, LARGEST_HEADER):
                raise ValueError("its header is longer than the file")
            entries = parsed(file.read(length).decode())
            storages = {}
            for name, entry in entries.items():
                if name == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                must_be(begin, int)
                must_be(end, int)
                if begin < 0 or end < begin or 8 + length + end > size:
                    raise ValueError(f"storage {name} lies outside the file")
                storages[str(name)] = (str(entry["dtype"]), 8 + length + begin, 8 + length + end)
        except (ValueError, KeyError, TypeError, struct.error, AttributeError) as error:
            raise BundleError(
                f"{path.name} is damaged: {error}",
                hint="copy the bundle again; nothing of it was run",
            ) from None
    return storages


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of `case.json`, checked; nothing is run."""
    if not folder.is_dir():
        raise BundleError(f"there is no bundle {folder}", hint="give the folder that holds case.json and repro.py")
    missing = [name for name in (FACTS, SCRIPT, TENSORS) if not (folder / name).is_file()]
    if missing:
        raise BundleError(
            f"{folder} has no {', '.join(missing)}", hint=f"a bundle is a folder with three files; {AGAIN}"
        )
    try:
        facts = read_json(folder / FACTS)
        schema = facts["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{folder / FACTS} cannot be read: {error}", hint=AGAIN) from None
    if type(schema) is not int or schema != SCHEMA:
        older = type(schema) is int and 1 <= schema < SCHEMA
        raise BundleError(
            f"{folder} was written in schema {schema}, and this torchparity reads {SCHEMA}",
            hint=f"{'capture it again' if older else 'upgrade torchparity'}, or run its repro.py with torch alone",
        )
    if facts.get("check") != check_of(facts):
        raise BundleError(f"{folder / FACTS} has been changed since it was written", hint=AGAIN)
    files = facts.get("files")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise BundleError(f"{folder / FACTS} does not make a case: it lists no files", hint=AGAIN)
    plain = all(USER_FILE.fullmatch(name) and name != SCRIPT for name in files)
    if not plain or not PLAIN_NAME.fullmatch(str(facts.get("name"))):
        raise BundleError(f"{folder / FACTS} names files outside the bundle", hint="do not run it")
    for name in (FACTS, SCRIPT, TENSORS, *files):
        if (folder / name).is_symlink():
            raise BundleError(f"{folder / name} points outside the bundle", hint="do not run it")
    return dict(facts)


def told_by(error: BaseException) -> str:
    """Say what is wrong in a line."""
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}"


def read_checked(path: Path, digest: str) -> str:
    """Return the text of a file that must be as it was written."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {error}", hint=AGAIN) from None
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise BundleError(
            f"{path} has been changed since it was written",
            hint=f"`python {path.name}` still runs it as it is; nothing of it was run here",
        )
    return text
