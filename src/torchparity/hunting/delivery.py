"""What is handed over for each bug: a folder with the program, the script, and a report that maintainers can use."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchparity.hunting.store import Bug, Find
from torchparity.programs.script import Shown

BUGS = "bugs"
PROGRAM, SCRIPT, ISSUE, FACTS = "program.py", "repro.py", "issue.md", "bug.json"
# What a stage is called in a report.
STAGES = {
    "dynamo": "Dynamo",
    "aot_autograd": "AOTAutograd",
    "decomposition": "a decomposition",
    "lowerings": "a lowering of inductor",
    "codegen": "inductor's generated code",
    "inductor": "inductor",
    "guards": "guards",
    "between": "between graphs",
}


def deliver(folder: Path, bug: Bug, find: Find, answer: Mapping[str, Any], shown: Shown | None) -> Path:
    """Write a bug's folder whole, or not at all; return it."""
    place = folder / BUGS / bug.name
    half = place.with_name(f".{bug.name}")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    (half / PROGRAM).write_text(bug.text, encoding="utf-8")
    if shown is not None:
        (half / SCRIPT).write_text(shown.text, encoding="utf-8")
    (half / ISSUE).write_text(issue_text(bug, find, answer, shown), encoding="utf-8")
    facts: dict[str, Any] = {
        "name": bug.name,
        "kind": bug.kind,
        "stage": bug.stage,
        "part": bug.part,
        "switch": dict(bug.switch),
    }
    facts |= {"severity": bug.severity, "known": bug.known, "seed": find.seed, "options": dict(find.options)}
    (half / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    half.replace(place)
    return place


def issue_text(bug: Bug, find: Find, answer: Mapping[str, Any], shown: Shown | None) -> str:
    """Return a report in the order that PyTorch's template for compiler bugs asks for."""
    where = STAGES.get(bug.stage, bug.stage.replace("_", " ")) + (f": {bug.part}" if bug.part else "")
    cure = ", ".join(f"`{name} = {value!r}`" for name, value in bug.switch.items())
    script = shown.text if shown is not None else bug.text
    parts = [
        f"# {bug.title}",
        "### Describe the bug",
        f"Eager and compiled disagree ({bug.kind}, severity {bug.severity}). It comes from {where}."
        + (f" It goes away with {cure}." if cure else ""),
        f"```python\n{script.rstrip()}\n```",
    ]
    if shown is not None:
        beyond = (
            "Default tolerances are exceeded."
            if shown.beyond_default
            else "Below default tolerances: compared bit for bit."
        )
        parts += ["### Error logs", f"```\n{tail(shown.output)}\n```", beyond]
    else:
        parts.append("No script of torch alone shows it; `torchparity check program.py:make` does.")
    parts += [
        "### How it was judged",
        "\n".join(f"- {reason}" for reason in answer["reasons"]),
        f"Data are small whole numbers; {answer['exact']} results are exact in any order of operations and were held "
        "without a tolerance, the others against a float64 reference and the measured rounding noise of eager.",
        "### How minimal",
        f"Made small from a generated program of {len(find.text.splitlines())} lines by {find.questions} questions.",
        "### Versions",
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}; "
        f"compiled with {dict(find.options) or 'defaults'}." + (f" Known upstream: #{bug.known}." if bug.known else ""),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def tail(output: str) -> str:
    """Return the end of what a script printed, without the paths of a machine."""
    lines = [line for line in output.strip().splitlines() if not line.lstrip().startswith(("File ", "^"))]
    return "\n".join(lines[-12:])
