"""What is handed over for each bug: a folder with the program, the script, and a report that maintainers can use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchparity.hunting.store import Bug, Find
from torchparity.records import Since
from torchparity.report.findings import STAGES
from torchparity.report.issue import write_issue
from torchparity.report.machine import write_data
from torchparity.report.releases import since_data
from torchparity.repro.looking import SCRIPT

if TYPE_CHECKING:
    from torchparity.minifier.programs import Shown

BUGS = "bugs"
PROGRAM, ISSUE, FACTS = "program.py", "issue.md", "bug.json"
# What `torchparity since bugs/NAME/repro.py --json bugs/NAME/since.json` leaves there too.
SINCE = "since.json"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A bug with all that its folder tells: its find, the answer of the judge, the script, since when, and where."""

    bug: Bug
    find: Find
    answer: Mapping[str, Any]
    environment: Mapping[str, Any]
    shown: Shown | None = None
    since: Since | None = None


def deliver(folder: Path, found: Found) -> Path:
    """Write a bug's folder whole, or not at all; return it."""
    bug, find, shown, since = found.bug, found.find, found.shown, found.since
    place = folder / BUGS / bug.name
    half = place.with_name(f".{bug.name}")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    (half / PROGRAM).write_text(bug.text, encoding="utf-8")
    if shown is not None:
        (half / SCRIPT).write_text(shown.text, encoding="utf-8")
    if since is not None:
        write_data(since_data(since), half / SINCE)
    (half / ISSUE).write_text(issue_text(found), encoding="utf-8")
    facts: dict[str, Any] = {
        "name": bug.name, "kind": bug.kind, "stage": bug.stage, "part": bug.part, "switch": dict(bug.switch),
        "severity": bug.severity, "known": bug.known, "seed": find.seed, "options": dict(find.options),
    }  # fmt: skip
    (half / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    half.replace(place)
    return place


def issue_text(found: Found) -> str:
    """Return a report that says what PyTorch's template for compiler bugs asks for."""
    bug, find, answer, shown = found.bug, found.find, found.answer, found.shown
    where = STAGES.get(bug.stage, bug.stage.replace("_", " ")) + (f": `{bug.part}`" if bug.part else "")
    cure = ", ".join(f"`{name} = {value!r}`" for name, value in bug.switch.items())
    blame = f"It comes from {where}." + (f" It goes away with {cure}." if cure else "")
    judged = [f"Eager and compiled disagree ({bug.kind}, severity {bug.severity}):", ""]
    judged += [f"- {reason}" for reason in answer["reasons"]]
    judged += [
        "",
        f"Data are small whole numbers, no extreme values. {answer['exact']} results are exact in any order of "
        "operations and were held without a tolerance, the others against a float64 run of the program and the "
        "measured rounding noise of eager.",
    ]
    if shown is not None:
        beyond = "exceeds" if shown.beyond_default else "is below"
        judged += ["", f"The difference {beyond} the default tolerances of `torch.testing.assert_close`."]
    else:
        judged += ["", "No script of torch alone shows it; `torchparity check program.py:make --exact` does."]
    how = f"Found by `torchparity hunt`, seed {find.seed}; a generated program of {len(find.text.splitlines())} lines "
    how += f"was made small by {find.questions} questions. Compiled with {dict(find.options) or 'defaults'}."
    return write_issue(
        title=bug.title,
        script=shown.text if shown is not None else bug.text,
        output=shown.output if shown is not None else "",
        environment=found.environment,
        judged="\n".join(judged),
        blame=blame,
        since=found.since,
        found=how + (f" Known upstream: #{bug.known}." if bug.known else ""),
    )
