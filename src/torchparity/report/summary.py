"""A check as Markdown, for the summary page of a CI job: the verdict, the worst leaves, how to see it again."""

from __future__ import annotations

import re
from pathlib import Path

from torchparity.errors import UsageError
from torchparity.records import UNCHANGED, JointVerdict, LeafReport, Verdict
from torchparity.report.issue import ENVIRONMENT, fenced
from torchparity.report.terminal import kind_cell, number, score_cell, where_cell

SHOWN_LEAVES = 10
COLUMNS = ("leaf", "kind", "eager", "compiled", "allowed", "score", "where")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
PUNCTUATION = re.compile(r"([\\`*_\[\]#!|~$:])")
# What would make a list or a heading of a line.
START = re.compile(r"^(\d*)([-+=.)])(?=[\s=-]|$)")


def append_summary(found: Verdict | JointVerdict, path: Path, *, command: str = "") -> None:
    """Add what a check found to the end of a Markdown file; `command` is what shows it again."""
    try:
        with path.open("a", encoding="utf-8") as file:
            lead = "\n" if file.tell() else ""
            file.write(lead + summary_text(found, command=command))
    except OSError as error:
        hint = "give --summary a file in a folder that exists"
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=hint) from error


def summary_text(found: Verdict | JointVerdict, *, command: str = "") -> str:
    """Return what a check found as GitHub's Markdown."""
    verdict = found.verdicts[found.worst] if isinstance(found, JointVerdict) else found
    word, backend = verdict.status.value.upper(), verdict.recipe.get("backend", "")
    lines = [f"## {word}: {plain(verdict.subject)} against {plain(str(backend))}", ""]
    if isinstance(found, JointVerdict):
        lines += [f"Rank {found.worst} of {len(found.verdicts)} ranks, the one to look at first.", ""]
    lines += [f"{plain(reason).rstrip('.')}." for reason in verdict.reasons]
    if verdict.failure is not None:
        lines += ["", f"{plain(verdict.failure.type)}: {plain(verdict.failure.message)}"]
    lines += ["", *table(verdict)]
    if verdict.recipe.get("source"):
        lines += ["### How it was compiled", "", fenced(str(verdict.recipe["source"]), "python"), ""]
    lines += ["### Versions", ""]
    lines += [
        f"- {name}: {plain(str(verdict.environment[name]))}"
        for name in ("torchparity", *ENVIRONMENT)
        if verdict.environment.get(name)
    ]
    if command:
        lines += ["", "### See it again", "", fenced(command, "sh")]
    return "\n".join(lines) + "\n"


def table(verdict: Verdict) -> list[str]:
    """Return the worst leaves as a table, and what it leaves out."""
    telling = [leaf for leaf in verdict.leaves if leaf.note != UNCHANGED]
    if not telling:
        return []
    against = "float64" if any(leaf.has_reference for leaf in telling) else "eager"
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    lines += [row(leaf) for leaf in telling[:SHOWN_LEAVES]]
    hidden = len(telling) - SHOWN_LEAVES
    more = f" {hidden} more leaves are not shown." if hidden > 0 else ""
    return [*lines, "", f"Errors against {against}; a score over {verdict.threshold:g} is no rounding.{more}", ""]


def row(leaf: LeafReport) -> str:
    """Return one row of the table."""
    errors = (number(leaf.eager_error), number(leaf.candidate_error), number(leaf.allowed), score_cell(leaf))
    cells = (plain(leaf.path), plain(kind_cell(leaf)), *errors, plain(where_cell(leaf)))
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """Return a text that Markdown shows as it is: on one line, nothing in it a mark, a tag or a mention."""
    line = CONTROL.sub(" ", text).strip()
    marked = START.sub(r"\1\\\2", PUNCTUATION.sub(r"\\\1", line))
    return "".join(ENTITIES.get(letter, letter) for letter in marked)
