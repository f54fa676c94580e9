"""A check as a JUnit file, for the test report of a CI system: one suite, one test case for the check (each rank)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from torchparity.records import JointVerdict, Status, Verdict
from torchparity.report.machine import write_whole
from torchparity.report.terminal import plain_text, score_cell

# XML has no way to write these, not even escaped.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SUITE = "torchparity"
DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'


def write_junit(found: Verdict | JointVerdict, path: Path) -> None:
    """Write what a check found as a JUnit file, whole or not at all."""
    write_whole(junit_text(found), path, option="--junit")


def junit_text(found: Verdict | JointVerdict) -> str:
    """Return what a check found as JUnit's XML."""
    verdicts = found.verdicts if isinstance(found, JointVerdict) else (found,)
    worst = found.verdicts[found.worst] if isinstance(found, JointVerdict) else found
    root = ET.Element("testsuites")
    suite = ET.SubElement(
        root,
        "testsuite",
        name=SUITE,
        tests=str(len(verdicts)),
        failures=str(count(verdicts, Status.DIFFERS)),
        errors=str(count(verdicts, Status.UNKNOWN)),
        skipped="0",
        time=f"{max(verdict.seconds for verdict in verdicts):.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    facts = facts_of(worst) | ({"ranks": str(len(verdicts))} if isinstance(found, JointVerdict) else {})
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=name, value=clean(value))
    for rank, verdict in enumerate(verdicts):
        place = f" on rank {rank}" if isinstance(found, JointVerdict) else ""
        suite.append(case_of(verdict, place))
    ET.indent(root)
    return f"{DECLARATION}\n{ET.tostring(root, encoding='unicode')}\n"


def case_of(verdict: Verdict, place: str) -> ET.Element:
    """Return the test case of one verdict: SAME passes, DIFFERS is a failure, UNKNOWN an error."""
    backend = verdict.recipe.get("backend", "")
    case = ET.Element(
        "testcase",
        classname="torchparity.check",
        name=clean(f"{verdict.subject} against {backend}{place}"),
        time=f"{verdict.seconds:.3f}",
    )
    if verdict.status is Status.SAME:
        return case
    differs = verdict.status is Status.DIFFERS
    told = ET.SubElement(
        case,
        "failure" if differs else "error",
        message=clean("; ".join(verdict.reasons)),
        type=(verdict.kind or "differs") if differs else "unknown",
    )
    told.text = clean(plain_text(verdict))
    return case


def facts_of(verdict: Verdict) -> dict[str, str]:
    """Return the properties of a suite: what was checked, where, and how it came out."""
    worst = verdict.worst
    facts = {
        "backend": str(verdict.recipe.get("backend", "")),
        "status": verdict.status.value,
        "kind": verdict.kind,
        "worst_leaf": worst.path if worst is not None else "",
        "score": score_cell(worst) if worst is not None else "",
    }
    return facts | {name: str(verdict.environment.get(name, "")) for name in ("torch", "torchparity", "device")}


def count(verdicts: Sequence[Verdict], status: Status) -> int:
    """Return how many verdicts are this one."""
    return sum(verdict.status is status for verdict in verdicts)


def clean(text: str) -> str:
    """Return a text without the characters that XML forbids."""
    return FORBIDDEN.sub("", text)
