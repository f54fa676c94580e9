"""An issue ready to paste: title, script, what it prints, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchparity.records import Since
from torchparity.report.releases import since_lines

ENVIRONMENT = ("torch", "python", "platform", "device", "cpu", "gpu")
OUTPUT_LINES = 40


def write_issue(
    *,
    title: str,
    script: str,
    output: str,
    environment: Mapping[str, Any],
    found: str,
    reproduced: tuple[int, int] | None = None,
    judged: str = "",
    blame: str = "",
    since: Since | None = None,
) -> str:
    """Return the text of `issue.md`; who is to blame and since when it fails stand there where they are known."""
    lines = [f"# {title}", "", "### Script", "", fenced(script, "python"), ""]
    if reproduced is not None:
        lines += [f"It fails in {reproduced[0]} of {reproduced[1]} runs in fresh processes.", ""]
    if output:
        lines += ["### What it prints", "", fenced("\n".join(output.strip().splitlines()[-OUTPUT_LINES:]), "text"), ""]
    if judged:
        lines += ["### How it was judged", "", judged, ""]
    if blame:
        lines += ["### Where it comes from", "", blame, ""]
    if since is not None:
        lines += ["### Since when", "", *since_lines(since), ""]
    lines += ["### Versions", ""]
    lines += [f"- {name}: {environment[name]}" for name in ENVIRONMENT if environment.get(name)]
    lines += ["", found, ""]
    return "\n".join(lines)


def fenced(text: str, language: str) -> str:
    """Return text in a fence that is longer than any inside it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
