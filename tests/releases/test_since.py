"""A script in several releases: what they say together, with interpreters that are stand-ins."""

from __future__ import annotations

import json

import pytest
from tests.releases.stand_ins import (
    ASSERTS,
    CRASHES,
    KILLED,
    LACKS,
    RAISES,
    SAYS_NEITHER,
    WORKS,
    interpreter,
)

import torchparity
from torchparity.errors import ResourceError, UsageError
from torchparity.records import Course, ReleaseState, Since
from torchparity.records.wire import plain_data, record_from
from torchparity.releases import since as room
from torchparity.report.issue import write_issue
from torchparity.report.releases import conclusion, since_lines

# what each release does -> how it goes, and what is said
COURSES = {
    "broken": (("2.9.1", WORKS), ("2.10.0", WORKS), ("2.11.0", ASSERTS)),
    "fixed": (("2.9.1", ASSERTS), ("2.10.0", WORKS)),
    "crash": (("2.9.1", WORKS), ("2.10.0", CRASHES)),
    "gap": (("2.9.1", WORKS), ("2.10.0", LACKS), ("2.11.0", KILLED), ("2.12.0", ASSERTS), ("2.13.0", SAYS_NEITHER)),
    "skipped": (("2.9.1", WORKS), ("2.13.0", ASSERTS)),
    "always": (("2.9.1", ASSERTS), ("2.10.0", ASSERTS), ("2.11.0", LACKS)),
    "never": (("2.9.1", WORKS), ("2.10.0", WORKS)),
    "came and went": (("2.9.1", WORKS), ("2.10.0", ASSERTS), ("2.11.0", WORKS)),
    "otherwise": (("2.9.1", WORKS), ("2.10.0", RAISES), ("2.11.0", ASSERTS)),
    "nobody": (("2.9.1", LACKS), ("2.10.0", SAYS_NEITHER)),
    "one": (("2.9.1", ASSERTS),),
}
SAID = {
    "broken": (Course.BROKEN, "broken since 2.11.0 (2.10.0 works)", 1),
    "fixed": (Course.FIXED, "fixed since 2.10.0 (2.9.1 fails)", 0),
    "crash": (Course.BROKEN, "broken since 2.10.0 (2.9.1 works)", 1),
    "gap": (
        Course.BROKEN,
        "broken between 2.9.1, which works, and 2.12.0, which fails; 2.10.0, 2.11.0 give no answer; "
        "2.13.0 gives no answer",
        125,
    ),
    "skipped": (
        Course.BROKEN,
        "broken between 2.9.1, which works, and 2.13.0, which fails; those between them were not asked",
        1,
    ),
    "always": (Course.ALWAYS, "fails in every release that answered; 2.11.0 gives no answer", 125),
    "never": (Course.NEVER, "fails in no release that was asked", 0),
    "came and went": (
        Course.CAME_AND_WENT,
        "came and went: works in 2.9.1, fails since 2.10.0, works since 2.11.0",
        0,
    ),
    "otherwise": (
        Course.BROKEN,
        "broken between 2.9.1, which works, and 2.11.0, which fails; 2.10.0 gives no answer",
        1,
    ),
    "nobody": (Course.UNKNOWN, "no release gave an answer", 125),
    "one": (Course.ALWAYS, "fails in 2.9.1", 1),
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "repro.py"
    path.write_text("")
    return path


@pytest.mark.parametrize("course", COURSES)
def test_how_it_goes_over_the_releases(script, tmp_path, course):
    pythons = [interpreter(tmp_path, version, action) for version, action in COURSES[course]]
    found = torchparity.since(script, python=list(reversed(pythons)))
    assert (found.course, conclusion(found), found.exit_code) == SAID[course]
    assert [answer.torch for answer in found.answers] == [version for version, _ in COURSES[course]]
    assert record_from(Since, json.loads(json.dumps(plain_data(found)))) == found
    assert since_lines(found)[0] == f"{conclusion(found)}."


def test_it_stands_in_the_report_of_a_failure(script, tmp_path):
    pythons = [interpreter(tmp_path, version, action) for version, action in COURSES["broken"]]
    facts = {"title": "t", "script": "s", "output": "o", "reproduced": (3, 3), "environment": {}, "found": "f"}
    issue = write_issue(**facts, since=torchparity.since(script, python=pythons))
    assert "### Since when\n\nbroken since 2.11.0 (2.10.0 works).\n" in issue
    assert "| 2.11.0 | fails | AssertionError: 2 is not 3 |\n\n### Versions" in issue
    assert "Since when" not in write_issue(**facts)


def test_the_failure_that_is_meant_can_be_named(script, tmp_path):
    pythons = [interpreter(tmp_path, version, action) for version, action in COURSES["otherwise"]]
    found = torchparity.since(script, python=pythons, error="InductorError")
    assert found.error == "InductorError"
    assert [answer.state for answer in found.answers] == [
        ReleaseState.WORKS,
        ReleaseState.FAILS,
        ReleaseState.UNKNOWN,
    ]
    assert found.answers[2].why == "fails in another way: AssertionError: 2 is not 3"


def test_a_hang_and_what_has_no_torch_are_told_as_they_are(script, tmp_path):
    hangs = interpreter(tmp_path, "2.9.1", "sleep 99")
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\"\nexit 1\n")
    bare.chmod(0o755)
    found = torchparity.since(script, python=[hangs, bare, tmp_path / "nowhere"], timeout=0.3)
    assert {answer.state for answer in found.answers} == {ReleaseState.UNKNOWN}
    hung, *others = found.answers
    assert (hung.why, hung.exit_code) == ("takes longer than 0.3 s", None)
    assert {answer.why.partition(": ")[0] for answer in others} == {"not available", "cannot be run"}


def test_every_answer_is_on_disk_before_the_next_is_asked(script, tmp_path):
    out = tmp_path / "since.json"
    seen = []

    def look(event):
        if out.exists():
            seen.append((event.run, len(json.loads(out.read_text())["answers"])))

    pythons = [interpreter(tmp_path, version, action) for version, action in COURSES["broken"]]
    torchparity.since(script, python=pythons, out=out, progress=look)
    assert {(2, 1), (3, 2)} <= set(seen)
    data = json.loads(out.read_text())
    assert (data["course"], data["conclusion"], data["exit_code"]) == ("broken", SAID["broken"][1], 1)


def test_one_release_that_cannot_be_had_stops_no_other(script, tmp_path, monkeypatch):
    def refuse(asked, **how):
        raise ResourceError(f"pip finds no torch {asked}", hint="another Python")

    monkeypatch.setattr(room, "environment_for", refuse)
    found = torchparity.since(script, torch=["2.10"], python=[interpreter(tmp_path, "2.9.1", WORKS)])
    assert conclusion(found) == "works in 2.9.1; 2.10 gives no answer"
    assert found.answers[1].why == "not available: pip finds no torch 2.10"
    assert found.answers[1].hint == "another Python"


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"torch": ["x"]}, "no release"), ({"timeout": 0.0}, "leaves nothing"), ({"timeout": float("nan")}, "leaves")],
)
def test_what_cannot_be_meant_is_refused(script, asked, told):
    with pytest.raises(UsageError, match=told):
        torchparity.since(script, **asked)


def test_a_folder_is_no_script(tmp_path):
    with pytest.raises(UsageError, match="is no script") as caught:
        torchparity.since(tmp_path)
    assert "repro.py" in caught.value.hint
