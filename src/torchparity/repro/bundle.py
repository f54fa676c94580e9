"""A case as a folder: `repro.py`, `tensors.safetensors`, `case.json`. Written whole or not at all; read with care.

Reading runs nothing: a bundle from a stranger can be looked at. Whether its files are what was written is checked
before anything else is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from torchparity.compilers.written import request_from_json
from torchparity.errors import BundleError, CaseError
from torchparity.records import Signature
from torchparity.records.wire import must_be, plain_data, record_from
from torchparity.repro.case import DIRECTIONS, LEVELS, Case
from torchparity.repro.folders import replacing
from torchparity.repro.looking import (
    AGAIN,
    FACTS,
    PLAIN_NAME,
    SCHEMA,
    SCRIPT,
    TENSORS,
    Look,
    check_of,
    look_at,
    told_by,
)
from torchparity.repro.seal import seal_of
from torchparity.repro.tensors import read_storages, write_storages
from torchparity.repro.values import Dense, RandomGenerator, Sparse, Value, Wrapper, from_json


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
    check = check_of(facts)
    return {**facts, "check": check, "seal": seal_of(check)}


# --- reading -------------------------------------------------------------------------------------


def read_bundle(folder: Path) -> Case:
    """Return the case in a folder, after checking that every file is what was written."""
    return case_of(look_at(folder))


def case_of(look: Look) -> Case:
    """Return the case of a bundle that was looked at: what was written is checked, what it says is not."""
    facts = look.facts
    try:
        case = Case(
            name=facts["name"],
            level=facts["level"],
            direction=facts["direction"],
            graph=look.graph,
            inputs=tuple((name, from_json(value)) for name, value in facts["inputs"]),
            constants=tuple((name, from_json(value)) for name, value in facts["constants"]),
            random=tuple((name, dense(from_json(value))) for name, value in facts["random"]),
            storages=read_storages(
                look.folder / TENSORS, look.storages, [entry["device"] for entry in facts["storages"]]
            ),
            request=request_from_json(facts["request"]),
            compute_nodes=facts["compute_nodes"],
            files=look.files,
            origin=facts["origin"],
            signature=record_from(Signature, facts["signature"]) if facts["signature"] else None,
            environment=facts["environment"],
            trusted=look.ours,
        )
        check_values(case)
        if case.digest != facts["digest"]:
            raise ValueError("it is not the case that was written")
    except (Exception, RecursionError, MemoryError) as error:  # noqa: BLE001 - whatever strange data lead to
        raise BundleError(f"{look.folder / FACTS} does not make a case: {told_by(error)}", hint=AGAIN) from None
    return case


def check_values(case: Case) -> None:
    """Raise ValueError unless level and direction are known and every tensor lies within its storage."""
    for facts in (case.origin, case.environment):
        must_be(facts, Mapping)
    lines, nodes, after = (case.origin.get(name) or () for name in ("lines", "nodes", "after"))
    must_be(lines, list, tuple)
    must_be(nodes, list, tuple)
    must_be(after, Mapping, tuple)
    for line in lines:
        must_be(line, str)
    must_be(case.compute_nodes, int)
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
