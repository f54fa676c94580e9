"""A check as Markdown: what the summary page of a CI job shows."""

from __future__ import annotations

import re

import pytest

from torchparity import Kind, LeafReport, Mismatch, Status, UsageError, Verdict
from torchparity.records import Failure, JointVerdict
from torchparity.report.summary import append_summary, plain, summary_text

HOSTILE = "a|b`c`<script>x</script>**d**[e](f)\n# g\x00\x1b @h #1 $i$ \\"


def leaf(path="output", **facts):
    wrong = (Mismatch(kind=Kind.VALUE, detail="value", where=(1, 0), expected="2", actual="3"),)
    return LeafReport(
        path=path,
        role="output",
        status=Status.DIFFERS,
        dtype="float32",
        shape=(2, 2),
        mismatches=wrong,
        **facts,
    )


def verdict(*leaves, status=Status.DIFFERS, **facts):
    return Verdict(
        status=status,
        reasons=("1 of 3 leaves differ; the worst is output (value)",),
        leaves=leaves,
        recipe={"backend": "inductor", "source": "import torch\ncompiled = torch.compile(model)\n"},
        environment={"torch": "2.13.0", "torchparity": "0.1.0", "python": "3.11.7"},
        threshold=8.0,
        **{"subject": "make", **facts},
    )


def rows(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def cells(row):
    """Split a row as GitHub does: at bars that no backslash stands before."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def test_the_verdict_is_the_heading_and_the_rest_follows():
    text = summary_text(verdict(leaf(score=9.5, has_reference=True)), command="torchparity check a.py:make")
    lines = text.splitlines()
    assert lines[0] == "## DIFFERS: make against inductor"
    assert lines[2] == "1 of 3 leaves differ; the worst is output (value)."
    assert cells(rows(text)[0])[0] == "leaf"
    assert cells(rows(text)[2]) == ["output", "value", "0", "0", "0", "9.5", r"\[1, 0\]\: 2 became 3"]
    assert "Errors against float64; a score over 8 is no rounding." in text
    assert "```python\nimport torch\ncompiled = torch.compile(model)\n```" in text
    assert "- torch: 2.13.0\n" in text
    assert text.endswith("```sh\ntorchparity check a.py:make\n```\n")


def test_only_the_worst_leaves_are_shown():
    text = summary_text(verdict(*(leaf(f"output{number}") for number in range(25)), leaf("x", note="unchanged")))
    assert len(rows(text)) == 2 + 10
    assert "15 more leaves are not shown." in text


def test_without_leaves_there_is_no_table():
    failure = Failure(type="RuntimeError", message="mat1 | mat2", stage="run")
    text = summary_text(verdict(status=Status.UNKNOWN, failure=failure))
    assert rows(text) == []
    assert r"RuntimeError: mat1 \| mat2" in text


def test_names_are_not_marks():
    text = summary_text(verdict(leaf(HOSTILE), subject=HOSTILE))
    heading = text.splitlines()[0]
    assert len(cells(rows(text)[2])) == 7
    for shown in (heading, rows(text)[2]):
        assert "<" not in shown
        assert "&lt;script&gt;" in shown
        assert not re.search(r"(?<!\\)[`*\[\]$]", shown)
        assert "@" not in shown and "\x00" not in shown and "\x1b" not in shown
    assert heading.endswith("against inductor")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("==", r"\=="),
        ("2.13.0", "2.13.0"),
        ("-1.5", "-1.5"),
        ("a\r\nb", "a b"),
        ("", ""),
    ],
)
def test_a_line_does_not_become_a_list(text, shown):
    assert plain(text) == shown


def test_a_fence_in_a_command_does_not_end_the_block():
    text = summary_text(verdict(), command="torchparity check '```'")
    assert text.endswith("````sh\ntorchparity check '```'\n````\n")


def test_ranks_show_the_one_to_look_at():
    text = summary_text(JointVerdict(verdicts=(verdict(status=Status.SAME), verdict(leaf()))))
    assert text.startswith("## DIFFERS")
    assert "Rank 1 of 2 ranks" in text


def test_it_is_added_to_what_is_there(tmp_path):
    path = tmp_path / "step.md"
    append_summary(verdict(), path)
    once = path.read_text()
    append_summary(verdict(), path)
    assert path.read_text() == f"{once}\n{once}"
    with pytest.raises(UsageError, match="cannot write") as caught:
        append_summary(verdict(), tmp_path / "missing" / "step.md")
    assert "--summary" in caught.value.hint
