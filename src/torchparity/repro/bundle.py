"""A case as a folder: `repro.py`, `tensors.safetensors`, `case.json`. Written whole or not at all; read with care.

Reading runs nothing: a bundle from a stranger can be looked at. Whether its files are what was written is checked
before anything else is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from torchparity.compilers.recipe import request_from_json
from torchparity.errors import BundleError, CaseError
from torchparity.records import Signature
from torchparity.records.wire import plain_data, record_from
from torchparity.repro.case import DIRECTIONS, LEVELS, Case
from torchparity.repro.folders import replacing
from torchparity.repro.script import graph_section
from torchparity.repro.source import SCRIPT
from torchparity.repro.tensors import read_storages, write_storages
from torchparity.repro.values import Dense, RandomGenerator, Sparse, Value, Wrapper, from_json

SCHEMA = 2
FACTS, TENSORS = "case.json", "tensors.safetensors"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.\-]*")
USER_FILE = re.compile(r"[A-Za-z_]\w*\.py")
AGAIN = "copy or capture it again; nothing of it was run"


def store(case: Case, script: str, folder: Path) -> Path:
    """Write a case and its script as a folder, whole or not at all. The same case gives the same bytes."""
    if not PLAIN_NAME.fullmatch(case.name):
        raise CaseError(f"a case cannot be called {case.name!r}", hint="use letters, digits, `_`, `.` and `-`")
    with replacing(folder, kept_unless=is_bundle) as partial:
        # The checksums of large tensors are taken while these are on their way to the disk.
        with ThreadPoolExecutor(1) as aside, (partial / TENSORS).open("wb", buffering=0) as file:
            facts = aside.submit(described, case, script)
            write_storages(file, case.storages)
            os.fsync(file.fileno())
        text = json.dumps(facts.result(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, content in {SCRIPT: script, FACTS: text, **case.files}.items():
            with (partial / name).open("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        partial.chmod(0o777 & ~current_umask())
    return folder


def is_bundle(folder: Path) -> bool:
    """Tell whether a folder may make way for a bundle: it is one, or is empty."""
    return folder.is_dir() and ((folder / FACTS).is_file() or not any(folder.iterdir()))


def located(folder: Path) -> Path:
    """Return the folder of the bundle: a minification keeps its smallest case in a folder inside its own."""
    inside = folder / "case"
    return inside if not (folder / FACTS).exists() and (inside / FACTS).is_file() else folder


def current_umask() -> int:
    """Return the permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def described(case: Case, script: str) -> dict[str, Any]:
    """Return the content of `case.json`."""
    facts = {
        "schema": SCHEMA,
        "name": case.name,
        "digest": case.digest,
        **case.facts(),
        "compute_nodes": case.compute_nodes,
        "signature": plain_data(case.signature),
        "origin": dict(case.origin),
        "environment": dict(case.environment),
        "script": hashlib.sha256(script.encode()).hexdigest(),
    }
    return {**facts, "check": check_of(facts)}


def check_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of everything in `case.json` but itself."""
    rest = {key: value for key, value in facts.items() if key != "check"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- reading -------------------------------------------------------------------------------------


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
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        schema = facts["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
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
    if not isinstance(files, dict):
        raise BundleError(f"{folder / FACTS} does not make a case: it lists no files", hint=AGAIN)
    plain = all(USER_FILE.fullmatch(name) and name != SCRIPT for name in files)
    if not plain or not PLAIN_NAME.fullmatch(str(facts.get("name"))):
        raise BundleError(f"{folder / FACTS} names files outside the bundle", hint="do not run it")
    for name in (FACTS, SCRIPT, TENSORS, *files):
        if (folder / name).is_symlink():
            raise BundleError(f"{folder / name} points outside the bundle", hint="do not run it")
    return dict(facts)


def read_bundle(folder: Path) -> Case:
    """Return the case in a folder, after checking that every file is what was written."""
    folder = located(Path(folder))
    facts = read_facts(folder)
    try:
        script = read_checked(folder / SCRIPT, facts["script"])
        files = {name: read_checked(folder / name, digest) for name, digest in facts["files"].items()}
        storages = read_storages(folder / TENSORS, [entry["device"] for entry in facts["storages"]])
        case = Case(
            name=facts["name"],
            level=facts["level"],
            direction=facts["direction"],
            graph=graph_section(script),
            inputs=tuple((name, from_json(value)) for name, value in facts["inputs"]),
            constants=tuple((name, from_json(value)) for name, value in facts["constants"]),
            random=tuple((name, dense(from_json(value))) for name, value in facts["random"]),
            storages=storages,
            request=request_from_json(facts["request"]),
            compute_nodes=facts["compute_nodes"],
            files=files,
            origin=facts["origin"],
            signature=record_from(Signature, facts["signature"]) if facts["signature"] else None,
            environment=facts["environment"],
        )
        check_values(case)
        digest = case.digest
    except (KeyError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError) as error:
        raise BundleError(f"{folder / FACTS} does not make a case: {error!r}", hint=AGAIN) from None
    if digest != facts["digest"]:
        raise BundleError(f"{folder} is not the case that was written: its digest differs", hint=AGAIN)
    return case


def check_values(case: Case) -> None:
    """Raise ValueError unless level and direction are known and every tensor lies within its storage."""
    if case.level not in LEVELS or case.direction not in DIRECTIONS:
        raise ValueError(f"there is no graph after {case.level}, {case.direction}")
    for part in dense_parts([value for _, value in (*case.inputs, *case.constants, *case.random)]):
        dtype = getattr(torch, str(part.dtype), None)
        if not isinstance(dtype, torch.dtype) or len(part.shape) != len(part.stride):
            raise ValueError(f"there is no tensor {part.to_source()}")
        if not 0 <= part.storage < len(case.storages) or min((part.offset, *part.shape, *part.stride)) < 0:
            raise ValueError(f"{part.to_source()} lies in no storage")
        last = part.offset + sum((size - 1) * step for size, step in zip(part.shape, part.stride, strict=True))
        if 0 not in part.shape and (last + 1) * dtype.itemsize > case.storages[part.storage].data.numel():
            raise ValueError(f"{part.to_source()} reaches beyond its storage")


def dense_parts(values: Iterable[Value]) -> Iterator[Dense]:
    """Yield every strided tensor that values are made of."""
    for value in values:
        if isinstance(value, Dense):
            yield value
        elif isinstance(value, Sparse):
            yield from value.parts
        elif isinstance(value, Wrapper):
            yield from (part for _, part in value.parts)
        elif isinstance(value, RandomGenerator):
            yield value.state


def dense(value: Any) -> Dense:
    """Return a value that must be a dense tensor."""
    if not isinstance(value, Dense):
        raise TypeError("a random generator's state is not a tensor")
    return value


def read_checked(path: Path, digest: str) -> str:
    """Return the text of a file that must be as it was written."""
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} cannot be read: {error}", hint=AGAIN) from None
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise BundleError(
            f"{path} has been changed since it was written",
            hint=f"`python {path.name}` still runs it as it is; nothing of it was run here",
        )
    return text
