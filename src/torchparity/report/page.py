"""An investigation as one HTML page that needs nothing else, and many of them as an index.

The page is made from `run.json` alone, so that it can be made again. Whatever comes from the user's program is escaped
by the template; numbers reach the script as JSON that cannot end its own element.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from torchparity.errors import UsageError
from torchparity.records import SCHEMA_VERSION, UNCHANGED, Diagnosis
from torchparity.records.strangers import read_json
from torchparity.records.wire import must_be, plain_data, record_from
from torchparity.report.charts import curve, histogram, time_line
from torchparity.report.findings import HOW, short_line
from torchparity.report.findings import STAGES as COMPILER_STAGES
from torchparity.report.layout import NODE_HEIGHT, NODE_WIDTH, lay_out
from torchparity.report.lines import PAGE, five_lines
from torchparity.report.machine import write_data, write_whole
from torchparity.report.story import story_text
from torchparity.version import __version__

FACTS = "run.json"
SHOWN_LEAVES = 400
# From which score on, in units of the threshold, a node gets the next colour.
HEAT = (0.0, 0.125, 1.0, 10.0, 1000.0)


def write_run(found: Diagnosis, folder: Path) -> Path:
    """Write `run.json` and the page of a diagnosis; return where the page is."""
    make_folder(folder)
    data = run_data(found)
    write_data(data, folder / FACTS)
    return write_page(data, folder)


def make_folder(folder: Path) -> None:
    """Make the folder of a run, or refuse at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}", hint="name another folder") from None


def run_data(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain data: every record, and the texts that the page and other tools show."""
    return {
        "schema": SCHEMA_VERSION,
        "torchparity": __version__,
        "status": found.status.value,
        "exit_code": found.exit_code,
        "lines": [list(line) for line in five_lines(found)],
        **plain_data(found),
        "story_text": story_text(found.story) if found.story is not None else "",
    }


def read_run(folder: Path) -> dict[str, Any]:
    """Return what a run has left, or refuse."""
    try:
        data = read_json(folder / FACTS)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} holds no run: {reason(error)}", hint="name a folder that `torchparity diagnose` wrote"
        ) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA_VERSION or "stages" not in data:
        raise UsageError(
            f"{folder / FACTS} was not written by this version of torchparity", hint="diagnose the model again"
        )
    try:
        check_run(data)
    except (Exception, RecursionError, MemoryError) as error:  # noqa: BLE001 - whatever strange data lead to
        raise UsageError(
            f"{folder / FACTS} does not make a page: {type(error).__name__}: {str(error)[:200]}",
            hint="it was changed since it was written; diagnose the model again",
        ) from None
    return data


def check_run(data: dict[str, Any]) -> None:
    """Raise where data are not those of a diagnosis: every record is made once, and what stands beside them seen."""
    fields = {field.name for field in dataclasses.fields(Diagnosis)}
    record_from(Diagnosis, {name: data[name] for name in fields})
    must_be(data["lines"], list)
    for line in data["lines"]:
        must_be(line, list)
        word, text = line
        must_be(word, str)
        must_be(text, str)
    for name in ("torchparity", "status", "story_text"):
        must_be(data[name], str)
    must_be(data["exit_code"], int)
    page_text(data)


def moved(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a run has left, with the paths of the folder that it is in now."""
    before, now = str(data["folder"]), str(folder)
    lines = [
        [word, text.replace(before, now, 1) if before and word in ("script", "page") else text]
        for word, text in data["lines"]
    ]
    return {**data, "folder": now, "lines": lines}


def reason(error: OSError | ValueError) -> str:
    """Say briefly why a file cannot be read."""
    return f"there is no {FACTS}" if isinstance(error, FileNotFoundError) else f"{FACTS} cannot be read ({error})"


def write_page(data: Mapping[str, Any], folder: Path) -> Path:
    """Write the page of a run, whole or not at all."""
    write_whole(page_text(data), folder / PAGE, option="--out")
    return folder / PAGE


def page_text(data: Mapping[str, Any]) -> str:
    """Return the page of a run."""
    every = (data["verdict"] or {}).get("leaves", [])
    leaves = [leaf for leaf in every if leaf["note"] != UNCHANGED]
    story = data["story"]
    small = data["smallest"]
    return (
        environment()
        .get_template("run.html")
        .render(
            run=data,
            style=part("style.css"),
            script=part("page.js"),
            leaves=leaves[:SHOWN_LEAVES],
            leaves_left=max(0, len(leaves) - SHOWN_LEAVES),
            unchanged=len(every) - len(leaves),
            picture=picture(data),
            curve=curve(small["curve"], int(small["started_from"]["operations"])) if small else "",
            bars=time_line(story) if story else [],
            title=f"{data['status']}: {data['subject']} against {data['backend']}",
        )
    )


def picture(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the graph as the template draws it: boxes, edges, and what a click shows."""
    graph = data["graph"]
    if not graph or not graph["nodes"]:
        return None
    located = data["located"] or {}
    errors = {error["place"]: error for error in located.get("nodes", ())}
    culprit = located.get("culprit")
    if culprit:
        errors.setdefault(culprit["place"], culprit)
    fused = {error["place"] for error in located.get("fusion", ())}
    nodes = graph["nodes"]
    guilty = next((number for number, node in enumerate(nodes) if culprit and node["place"] == culprit["place"]), None)
    plan = lay_out(nodes, guilty)
    spots = {placed.number: placed for placed in plan.nodes}
    threshold = located.get("threshold") or 8.0
    boxes = [
        {
            **nodes[placed.number],
            "number": placed.number,
            "x": placed.x,
            "y": placed.y,
            "heat": heat(errors.get(nodes[placed.number]["place"]), threshold),
            "error": errors.get(nodes[placed.number]["place"]),
            "culprit": placed.number == guilty,
            "fused": nodes[placed.number]["place"] in fused and nodes[placed.number]["place"] is not None,
        }
        for placed in plan.nodes
    ]
    edges = [
        (spots[start].x, spots[start].y + NODE_HEIGHT / 2, spots[end].x, spots[end].y - NODE_HEIGHT / 2, start, end)
        for start, end in plan.edges
    ]
    size = {"width": plan.width, "height": plan.height, "node_width": NODE_WIDTH, "node_height": NODE_HEIGHT}
    return {"boxes": boxes, "edges": edges, "guilty": guilty, "left_out": plan.left_out, **size}


def heat(error: Mapping[str, Any] | None, threshold: float) -> int:
    """Return how strongly a node is coloured: 0 nothing known, 1 to 2 rounding, 3 and more an error of its own."""
    if error is None or (error["introduced"] is None and not error["introduced_kind"]):
        return 0
    score = number_of(error["introduced"]) / threshold
    found = sum(score >= edge for edge in HEAT[:3]) if not error["introduced_kind"] else 3
    return min(found, 2) if not error["introduced_kind"] else 3 + sum(score >= edge for edge in HEAT[3:])


def number_of(value: Any) -> float:
    """Return a number that JSON may have had to write as a word."""
    return float(value) if value is not None else 0.0


@functools.cache
def environment() -> jinja2.Environment:
    """Return what makes pages of templates: everything is escaped, and a missing name is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("torchparity.report", "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, short_line=short_line, seconds=seconds, json=safe_json)
    made.globals.update(histogram=histogram, how=HOW, compiler_stages=COMPILER_STAGES, version=__version__)
    return made


def part(name: str) -> Markup:
    """Return a file that goes into the page as it is."""
    return Markup((importlib.resources.files("torchparity.report") / "pages" / name).read_text(encoding="utf-8"))


def number(value: Any) -> str:
    """Return a number briefly; words stay words."""
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """Return a duration as people say it."""
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {value % 60:.0f} s"


def safe_json(value: Any) -> Markup:
    """Return JSON that may stand inside a script element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


# --- many runs -----------------------------------------------------------------------------------


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of runs inside a folder, the newest first."""
    found = [path.parent for path in folder.glob(f"*/{FACTS}")]
    return sorted(found, key=lambda path: (path / FACTS).stat().st_mtime, reverse=True)


def write_index(folder: Path) -> Path:
    """Write the page of many runs, which links to each of theirs."""
    rows, broken = [], []
    for path in runs_below(folder):
        try:
            rows.append({**read_run(path), "folder": path.name})
        except UsageError as error:
            broken.append(error.message)
    text = (
        environment()
        .get_template("runs.html")
        .render(
            rows=rows,
            broken=broken,
            page=PAGE,
            style=part("style.css"),
            script=part("page.js"),
            title=f"{len(rows)} run{'s' * (len(rows) != 1)} in {folder.resolve().name}",
        )
    )
    write_whole(text, folder / PAGE, option="the index")
    return folder / PAGE
