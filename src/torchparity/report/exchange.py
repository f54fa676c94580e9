"""A sweep in the formats of other tools: SARIF, JUnit, lines of JSON, annotations of GitHub."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from torchparity.records import SweepCell, SweepSummary
from torchparity.records.wire import plain_data
from torchparity.report.junit import DECLARATION, SUITE, clean
from torchparity.report.machine import write_whole
from torchparity.version import __version__

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# What a severity is to tools that know three levels.
LEVELS = {"layout": "note", "precision": "warning"}
GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def write_sarif(summary: SweepSummary, path: Path) -> None:
    """Write the failures of a sweep as SARIF, whole or not at all."""
    write_whole(json.dumps(sarif_data(summary), indent=1), path, option="--sarif")


def sarif_data(summary: SweepSummary) -> dict[str, Any]:
    """Return the failures of a sweep as SARIF 2.1.0; a failure keeps its fingerprint from sweep to sweep."""
    cells = [cell for cell in summary.cells if cell.status in ("differs", "unknown")]
    kinds = sorted({rule_of(cell) for cell in cells})
    driver = {
        "name": "torchparity",
        "version": __version__,
        "rules": [{"id": kind, "shortDescription": {"text": f"eager and compiled: {kind}"}} for kind in kinds],
    }
    results = [result_of(cell, kinds.index(rule_of(cell))) for cell in cells]
    return {"version": "2.1.0", "$schema": SARIF_SCHEMA, "runs": [{"tool": {"driver": driver}, "results": results}]}


def result_of(cell: SweepCell, rule: int) -> dict[str, Any]:
    """Return one failure as a result of SARIF; what the baseline accepts is suppressed."""
    result: dict[str, Any] = {
        "ruleId": rule_of(cell),
        "ruleIndex": rule,
        "level": level_of(cell),
        "message": {"text": f"{cell.title} ({cell.options}): {cell.reason or cell.status}"},
        "partialFingerprints": {"torchparity/v1": cell.fingerprint},
        "properties": {"severity": cell.severity, "baseline": cell.baseline, "leaves": list(cell.leaves[:20])},
    }
    if cell.file:
        place: dict[str, Any] = {"artifactLocation": {"uri": Path(cell.file).as_posix()}}
        place["region"] = {"startLine": max(1, cell.line)}
        result["locations"] = [{"physicalLocation": place}]
    if cell.baseline == "known":
        result["suppressions"] = [{"kind": "external", "status": "accepted"}]
    return result


def rule_of(cell: SweepCell) -> str:
    """Return the rule that a failure breaks: its kind."""
    return cell.kind or cell.status


def level_of(cell: SweepCell) -> str:
    """Return how bad a failure is, for tools that know three levels."""
    return "warning" if cell.status == "unknown" else LEVELS.get(cell.severity, "error")


def write_sweep_junit(summary: SweepSummary, path: Path) -> None:
    """Write a sweep as a JUnit file, whole or not at all: every cell is a test."""
    write_whole(sweep_junit_text(summary), path, option="--junit")


def sweep_junit_text(summary: SweepSummary) -> str:
    """Return a sweep as JUnit's XML; what the baseline accepts is skipped, what waits is too."""
    cells = summary.cells
    failing = {cell.id for cell in summary.failing}
    failures = sum(cell.status == "differs" for cell in summary.failing)
    root = ET.Element("testsuites")
    suite = ET.SubElement(
        root,
        "testsuite",
        name=SUITE,
        tests=str(len(cells)),
        failures=str(failures),
        errors=str(len(failing) - failures),
        skipped=str(sum(cell.status != "same" and cell.id not in failing for cell in cells)),
        time=f"{sum(cell.seconds for cell in cells):.3f}",
    )
    for cell in cells:
        name = cell.options + (f" #{cell.repeat + 1}" if cell.repeat else "")
        place = f"environment{cell.environment}." if len(summary.environments) > 1 else ""
        test = ET.SubElement(
            suite, "testcase", classname=clean(place + cell.title), name=clean(name), time=f"{cell.seconds:.3f}"
        )
        if cell.id in failing:
            word = "failure" if cell.status == "differs" else "error"
            told = ET.SubElement(test, word, message=clean(cell.reason), type=rule_of(cell))
            told.text = clean("\n".join([cell.reason, *cell.leaves]))
        elif cell.status != "same":
            why = (
                "has no verdict yet"
                if not cell.status
                else (cell.baseline and "is in the baseline") or "is not gated on"
            )
            ET.SubElement(test, "skipped", message=why)
    ET.indent(root)
    return f"{DECLARATION}\n{ET.tostring(root, encoding='unicode')}\n"


def lines_text(summary: SweepSummary) -> str:
    """Return every cell as a line of JSON."""
    return "".join(json.dumps(plain_data(cell), allow_nan=False) + "\n" for cell in summary.cells)


def github_text(summary: SweepSummary) -> str:
    """Return failures that are not accepted as commands that GitHub shows beside the code."""
    lines = []
    for cell in summary.failing:
        places = [f"file={property_of(cell.file)}", f"line={max(1, cell.line)}"] if cell.file else []
        places.append(f"title={property_of(f'torchparity: {cell.title} {cell.status}')}")
        text = f"{cell.options}: {cell.reason or cell.status}"
        lines.append(f"::{GITHUB[level_of(cell)]} {','.join(places)}::{escaped(text)}")
    return "".join(line + "\n" for line in lines)


def escaped(text: str) -> str:
    """Return a text that a command of GitHub's can hold."""
    return re.sub(r"[%\r\n]", lambda found: f"%{ord(found[0]):02X}", text)


def property_of(text: str) -> str:
    """Return a text that a property of a command of GitHub's can hold."""
    return re.sub(r"[:,]", lambda found: f"%{ord(found[0]):02X}", escaped(text))
