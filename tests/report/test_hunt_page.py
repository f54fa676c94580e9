import json
import re
import sqlite3
from dataclasses import replace

import pytest
from tests.report.hunts import bug, find, hostile, hunt, large
from tests.report.samples import HOSTILE
from tests.report.test_page import Elements

from torchparity.errors import UsageError
from torchparity.hunting import store, summary
from torchparity.hunting.roots import Known
from torchparity.hunting.store import Bug, Store
from torchparity.records import HuntFind, HuntReason, HuntSummary
from torchparity.records.wire import plain_data, record_from
from torchparity.report.charts import bars, growth, round_ticks
from torchparity.report.hunt import (
    SEVERITIES,
    STATES,
    essence,
    finds_text,
    headline,
    hunt_data,
    hunt_text,
    options_text,
    write_hunt,
)
from torchparity.verbs.report import hunt_in

# --- the page ------------------------------------------------------------------------------------


def words(found):
    return re.sub(r"\s+", " ", " ".join(Elements(hunt_text(found)).words))


def test_the_page_holds_every_part():
    text = hunt_text(hunt())
    for part in ("bugs", "time", "finds", "coverage", "left-out", "unknown", "errors"):
        assert f'<section id="{part}"' in text
    said = words(hunt())
    assert "2 new bugs and 1 known in 60 programs" in said
    assert "broken since 2.9 (2.8 works)" in said
    assert "inductor.disabled_passes='ant'" in said
    assert "56 same 3 differs 1 unknown 0 error" in re.sub(r"\s+", " ", said)
    assert "made torchparity itself fail" not in said


def test_what_was_never_drawn_and_what_was_left_out_is_said():
    said = words(hunt())
    assert "1 form never drawn layer: conv2d" in said
    assert "refused eager raises 125" in said
    assert "too large values so large that nothing stays exact none" in said
    assert "the model itself raises RuntimeError 1 1025" in said


def test_errors_of_the_checker_are_an_alarm():
    found = hunt(errors=(HuntReason(text="KeyError: 'x'", count=2, seeds=(8, 9)),))
    assert hunt_text(found).count('class="alarm"') == 2
    assert "The checker itself failed on 2 programs." in words(found)
    assert 'class="alarm"' not in hunt_text(hunt())


def test_a_hunt_that_has_just_begun_has_a_page():
    found = HuntSummary(torch="2.13", began="2026-01-01T00:00:00+00:00")
    said = words(found)
    assert "No bug yet in 0 programs" in said
    assert "Nothing has come to an end yet" in said


def test_the_page_asks_for_nothing_from_outside():
    elements = Elements(hunt_text(hunt()))
    addresses = [value for _, name, value in elements.attributes if name in ("src", "href", "action", "srcset")]
    allowed = r"#|data:,$|finds\.jsonl$|bugs/[\w-]+/\w+\.\w+$|https://github\.com/pytorch/pytorch/issues/198102$"
    assert all(re.match(allowed, address) for address in addresses), addresses
    assert "src" not in {name for _, name, _ in elements.attributes}


def test_texts_from_programs_stay_text():
    calm, wild = (Elements(hunt_text(found)) for found in (replace(large(), bugs=(bug(script=""), bug())), hostile()))
    assert set(wild.tags) <= set(calm.tags) | {"br"}
    assert not [entry for entry in wild.attributes if entry[1].startswith("on")]
    assert HOSTILE.replace("\0", "\ufffd") in "".join(wild.words).replace("\0", "\ufffd")
    links = [value for tag, name, value in wild.attributes if (tag, name) == ("a", "href")]
    assert not [link for link in links if "window" in link and not link.startswith("bugs/%3C/script%3E")]


def test_only_a_number_is_followed_upstream():
    text = hunt_text(hunt(bugs=(bug(known="javascript:alert(1)"),)))
    assert "javascript:alert(1)</td>" in text
    assert 'href="javascript' not in text


def test_many_finds_are_counted_and_not_listed():
    assert "400 finds; 500 more are in finds.jsonl" in words(large())


def test_a_bug_without_a_script_says_how_it_is_shown():
    assert "torchparity check bugs/passes-ant-stride/program.py:make" in words(hunt())


# --- machines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [hunt, hostile, large])
def test_finds_go_to_json_lines_and_back(tmp_path, made):
    found = made()
    assert write_hunt(tmp_path, found) == tmp_path / "index.html"
    lines = (tmp_path / "finds.jsonl").read_text().splitlines()
    assert tuple(record_from(HuntFind, json.loads(line)) for line in lines) == found.finds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["finds.jsonl", "index.html"]


def test_the_whole_hunt_goes_to_json_and_back():
    data = json.loads(json.dumps(hunt_data(hunt())))
    assert (data["programs"], data["new"]) == (60, 2)
    assert record_from(HuntSummary, plain_data(hunt())) == hunt()
    assert finds_text(HuntSummary(torch="", began="")) == ""


# --- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "2 new bugs and 1 known in 60 programs"),
        ({"bugs": (bug(),)}, "1 new bug in 60 programs"),
        ({"bugs": (bug(known="1"),)}, "1 known bug in 60 programs"),
        ({"bugs": ()}, "No bug yet, 2 finds in 60 programs"),
        ({"bugs": (), "finds": (), "statuses": {"same": 1}}, "No bug yet in 1 program"),
    ],
)
def test_the_headline(facts, text):
    assert headline(hunt(**facts)) == text


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import torch\n\ndef program(b):\n    b.add_(1)\n\ndef make():\n    return 1\n", "b.add_(1)"),
        ("def program(b):\n    if b:\n        c\n    d\n    e\n", "if b:\n    c\nd\n…"),
        ("nothing", ""),
        ("", ""),
        ("def program(b):", ""),
    ],
)
def test_the_essence_of_a_program(program, text):
    assert essence(program) == text


def test_options_are_told_as_they_are_written():
    assert options_text({}) == "defaults"
    assert (
        options_text({"dynamic": True, "config": {"inductor.cpp.simdlen": 1}}) == "dynamic=True, inductor.cpp.simdlen=1"
    )


def test_every_word_of_a_hunt_has_a_meaning():
    assert set(STATES) == {store.NEW, store.GONE, store.LIKELY, store.SETTLED, store.UNSHOWN, store.STUCK}
    assert {*SEVERITIES, "none"} == {severity.value for severity in summary.Severity}


@pytest.mark.parametrize(
    ("most", "ticks"), [(1, [0, 1]), (4, [0, 1, 2, 3, 4]), (7, [0, 2, 4, 6]), (480, [0, 200, 400])]
)
def test_scales_are_marked_with_round_numbers(most, ticks):
    assert round_ticks(most) == ticks


def test_charts_over_time_say_what_they_show():
    drawn = str(bars([(5, 1), (0, 0)], span=2, label="a < b", words=("programs", "finds")))
    assert drawn.count("<rect") == 2
    assert "from minute 2 on: 0 programs, 0 finds" in drawn
    assert 'aria-label="a &lt; b"' in drawn
    assert "hours" in str(growth([1] * 60, span=10, label=""))
    assert str(bars([], span=1, label="", words=("", ""))) == str(growth([], span=1, label="")) == ""


# --- from a store --------------------------------------------------------------------------------


def answer(status, **facts):
    usual = {"kind": "", "severity": "none", "seconds": 2.0, "features": ["view:flip"], "reasons": ["why"]}
    return {"status": status, **usual, "options": {}, "left_out": {"refused": 2}, **facts}


@pytest.fixture
def campaign(tmp_path):
    """Three programs in five minutes, a night's pause, three more; two bugs, one of them known."""
    kept = Store(tmp_path, create=True)
    kept.set_fact("torch", "2.13.0")
    kept.set_fact("began", "1000000")
    kept.set_fact("seed", "50")
    failing = answer("differs", kind="value", severity="wrong", features=["view:flip", "write:add_"], signatures=[])
    night = 1_000_300 + 40_000
    for seed, said, at in (
        (50, answer("same", features=["view:flip", "view:flip"]), 1_000_060),
        (51, failing, 1_000_120),
        (52, answer("unknown", reasons=["3 of 4 are silent"], options={"dynamic": True}), 1_000_300),
        (53, answer("unknown", reasons=["2 of 9 are silent"]), night),
        (54, failing, night + 60),
        (55, answer("error", reasons=["KeyError: 1"]), night + 60),
    ):
        kept.add(seed, said, f"program {seed}", at)
    kept.add_bug(
        Bug(name="one", kind="value", stage="codegen", severity="wrong", text="small", known="7", at=1_000_200)
    )
    kept.add_bug(Bug(name="two", kind="stride", stage="codegen", severity="layout", at=night + 120))
    kept.settle(51, store.SETTLED, bug="one", small="small")
    kept.settle(54, store.LIKELY, bug="one")
    yield kept
    kept.close()


def test_a_summary_of_a_store(campaign):
    known = Known(kind="", stage="", part="", calls=(), number="7", title="a title", since="2.9")
    found = summary.summary_of(campaign, known=[known])
    assert (found.torch, found.seed, found.programs, found.differing) == ("2.13.0", 50, 6, 2)
    assert found.statuses == {"differs": 2, "error": 1, "same": 1, "unknown": 2}
    assert (found.minutes, found.drawing) == (7.0, 6.0)  # The night is no hunting.
    assert found.rate == 1.0
    assert [(entry.minute, entry.programs, entry.finds, entry.bugs) for entry in found.buckets] == [
        (0, 0, 0, 0), (1, 1, 0, 0), (2, 1, 1, 0), (3, 0, 0, 1), (4, 0, 0, 0), (5, 2, 0, 0), (6, 2, 1, 0), (7, 0, 0, 1)
    ]  # fmt: skip
    assert [entry.name for entry in found.bugs] == ["two", "one"]  # What is new comes first.
    one = found.bugs[1]
    assert (one.verified, one.likely, one.seeds, one.known_title, one.since) == (1, 1, (51,), "a title", "2.9")
    assert (found.unknown[0].text, found.unknown[0].count, found.unknown[0].seeds) == ("# of # are silent", 2, (52, 53))
    assert (found.errors[0].text, found.errors[0].count) == ("KeyError: 1", 1)
    variants = [(entry.options, entry.programs, entry.unknown) for entry in found.variants]
    assert variants == [({}, 5, 1), ({"dynamic": True}, 1, 1)]


def test_coverage_names_what_was_never_drawn(campaign):
    found = summary.summary_of(campaign)
    forms = {(form.table, form.name): form for form in found.forms}
    flip = forms["view", "flip"]
    assert (flip.lines, flip.programs, flip.finds) == (7, 6, 2)
    assert forms["write", "add_"].finds == 2
    assert forms["layer", "conv2d"].lines == 0
    assert found.left_out[0] == HuntReason(text="refused", count=12, meaning="eager raises")


def test_files_of_a_bug_are_linked_and_read(campaign):
    place = campaign.folder / "bugs" / "one"
    place.mkdir(parents=True)
    (place / "issue.md").write_text("# it differs")
    (place / "since.json").write_text('{"conclusion": "broken since 2.12"}')
    one = summary.summary_of(campaign).bugs[1]
    assert (one.issue, one.since) == ("# it differs", "broken since 2.12")
    assert one.files == ("bugs/one/issue.md", "bugs/one/since.json")


@pytest.mark.parametrize(("minutes", "span"), [(0, 1), (60, 1), (61, 2), (480, 10), (10**6, 1440)])
def test_spans_of_time_are_few(minutes, span):
    assert summary.span_for(minutes) == span


def test_a_folder_without_a_hunt_has_none(tmp_path):
    assert hunt_in(tmp_path) is None


def test_a_hunt_is_read_while_it_goes_on(campaign):
    assert hunt_in(campaign.folder).programs == 6
    campaign.add(56, answer("same"), "", 1_050_000)
    assert hunt_in(campaign.folder).programs == 7


def test_what_is_no_hunt_is_refused(tmp_path):
    (tmp_path / "hunt.db").write_text("no database at all" * 100)
    with pytest.raises(UsageError, match=r"hunt\.db cannot be read: DatabaseError"):
        hunt_in(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "update programs set features = '{'",
        "update programs set at = 'soon'",
        "update finds set answer = '[]'",
        "update bugs set title = x'ff'",
        "update bugs set switch = '3'",
        "drop table bugs",
    ],
)
def test_a_damaged_hunt_is_refused(campaign, change):
    with sqlite3.connect(campaign.folder / "hunt.db") as connection:
        connection.execute(change)
    with pytest.raises(UsageError, match=r"hunt\.db cannot be read: \w+Error"):
        hunt_in(campaign.folder)


def test_a_find_that_waits_shows_its_program():
    said = words(hunt(finds=(find(9, state="new", bug="", small="", program="the program itself"),)))
    assert "the program itself" in said
    assert "torchparity hunt --resume FOLDER goes on with it" in said
