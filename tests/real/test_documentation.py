"""The documentation is true: its commands are run as they stand, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+\.py)\n")
COMMAND = re.compile(r"\$ (?P<command>.+?)(?:  # exits with (?P<code>\d+))?$")
# Pages whose commands a newcomer can type, from top to bottom, in an empty folder.
PAGES = [
    "check.md",
    pytest.param("ci.md", marks=pytest.mark.slow),
    pytest.param("pytest.md", marks=pytest.mark.slow),
    pytest.param("quick-start.md", marks=pytest.mark.slow),
    pytest.param("backends.md", marks=pytest.mark.slow),
]
NOT_HERE = re.compile(r"^(git|pip|python3? -m venv|\S*/bin/|docker|torchrun)\b")


def steps(page):
    """Yield what a page asks of its reader: files to write, and commands with the output that is shown for each."""
    for language, text in FENCE.findall((DOCS / page).read_text(encoding="utf-8")):
        named = FILE.match(text)
        if language == "python" and named:
            yield "file", named[1], text
        elif language == "console":
            for part in re.split(r"(?m)^(?=\$ )", text):
                found = COMMAND.match(part.split("\n")[0])
                if found:
                    shown = [line for line in part.split("\n")[1:] if line.strip()]
                    yield "command", found, shown


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(page, tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"COLUMNS": "400", "NO_COLOR": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    ran = 0
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for kind, what, rest in steps(page):
        if kind == "file":
            (tmp_path / what).write_text(rest, encoding="utf-8")
            continue
        if NOT_HERE.match(what["command"]):
            continue
        done = subprocess.run(
            what["command"], shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
        )
        told = f"$ {what['command']}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == int(what["code"] or 0), told
        for line in rest:
            # Times, counts and scores differ from run to run; the words must stand there in this order.
            words = [word for word in re.findall(r"\S+", line) if not re.search(r"\d", word)]
            assert any(in_order(words, shown) for shown in [*done.stdout.splitlines(), done.stdout]), (line, told)
        ran += 1
    assert ran


def in_order(words, text):
    """Tell whether words stand in a text in their order."""
    place = 0
    for word in words:
        place = text.find(word, place)
        if place < 0:
            return False
        place += len(word)
    return True


def anchors(path):
    """Return what a page can be linked at."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if address.startswith(("http://", "https://")):
            continue
        place, _, anchor = address.partition("#")
        target = ROOT / place if place else ROOT / page
        assert target.exists(), address
        assert not anchor or anchor in anchors(target), address


def test_the_example_of_a_backend_is_the_file():
    shown = [text for language, text in FENCE.findall((DOCS / "backends.md").read_text()) if language == "python"]
    example = (ROOT / "examples" / "my_backend.py").read_text()
    assert any(example.strip() in text for text in shown)
