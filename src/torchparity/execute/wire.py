"""Records as plain data and back: how a verdict travels between processes and into a file."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

from torchparity.records import Failure, Histogram, Kind, LeafReport, Mismatch, RunRecord, Status, Verdict

NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def pack(value: Any) -> Any:
    """Return a record as JSON data (numbers that JSON does not know as words)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: pack(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, Mapping):
        packed = {str(key): pack(entry) for key, entry in value.items()}
        return {"float": packed} if set(packed) == {"float"} else packed  # Not to be taken for a number.
    if isinstance(value, list | tuple):
        return [pack(entry) for entry in value]
    return value


def unpack(data: Any) -> Any:
    """Return JSON data with its special numbers back."""
    if isinstance(data, dict):
        if set(data) == {"float"}:
            inner = data["float"]
            return NUMBERS[inner] if isinstance(inner, str) else {key: unpack(entry) for key, entry in inner.items()}
        return {key: unpack(entry) for key, entry in data.items()}
    if isinstance(data, list):
        return [unpack(entry) for entry in data]
    return data


def verdict_from(data: Any) -> Verdict:
    """Return the verdict that was packed."""
    facts = unpack(data)
    facts["status"] = Status(facts["status"])
    facts["reasons"] = tuple(facts["reasons"])
    facts["leaves"] = tuple(leaf_from(leaf) for leaf in facts["leaves"])
    facts["runs"] = tuple(RunRecord(**run) for run in facts["runs"])
    facts["failure"] = Failure(**facts["failure"]) if facts["failure"] else None
    facts["differs_in"] = tuple(facts["differs_in"]) if facts["differs_in"] else None
    return Verdict(**facts)


def leaf_from(facts: dict[str, Any]) -> LeafReport:
    """Return one leaf's report."""
    mismatches = tuple(
        Mismatch(**{**entry, "kind": Kind(entry["kind"]), "where": place(entry["where"])})
        for entry in facts["mismatches"]
    )
    changed = {
        "status": Status(facts["status"]),
        "shape": tuple(facts["shape"]),
        "where": place(facts["where"]),
        "mismatches": mismatches,
        "histogram": histogram_from(facts["histogram"]) if facts.get("histogram") else None,
    }
    return LeafReport(**{**facts, **changed})


def histogram_from(facts: dict[str, Any]) -> Histogram:
    """Return the spread of one leaf's errors."""
    lists = {name: tuple(facts[name]) for name in ("eager", "candidate", "exact")}
    return Histogram(first=facts["first"], **lists)


def place(index: list[int] | None) -> tuple[int, ...] | None:
    """Return an index as a tuple."""
    return None if index is None else tuple(index)
