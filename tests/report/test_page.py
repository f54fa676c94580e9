import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.report.samples import HOSTILE, diagnosis, hostile, leaf

from torchparity.errors import UsageError
from torchparity.judge.isolated import verdict_of
from torchparity.records import UNCHANGED, Histogram, SmallProgram, Status, Tuned
from torchparity.report.charts import curve, histogram
from torchparity.report.lines import script_line
from torchparity.report.machine import plain_data
from torchparity.report.page import (
    heat,
    make_folder,
    moved,
    page_text,
    read_run,
    run_data,
    write_index,
    write_page,
    write_run,
)
from torchparity.verbs.programs import as_smallest
from torchparity.workers.outcome import Ending, Outcome


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_holds_every_part():
    text = page_text(run_data(diagnosis()))
    for part in ("leaves", "graph", "minification", "script", "blame", "stages", "environment"):
        assert f'<section id="{part}"' in text
    assert "steps = x // 0.1" in text
    assert "without the lowering of div" in text


def test_the_device_and_the_kernels_that_were_tuned_are_there():
    run = diagnosis()
    tuned = Tuned(kernel="mm", shapes="64x64", choices=("aten", HOSTILE), taken="aten", wrong=(HOSTILE,))
    run = replace(run, verdict=replace(run.verdict, tuned=(tuned,)), environment={"device": "cuda:0", "gpu": "H200"})
    elements = Elements(page_text(run_data(run)))
    words = " ".join(elements.words)
    assert "· H200" in words
    assert "Kernels that were tuned" in words
    assert "window.hurt=1" in words  # As text.
    assert elements.tags.count("script") == Elements(page_text(run_data(diagnosis()))).tags.count("script")


def test_the_page_asks_for_nothing_from_outside():
    elements = Elements(page_text(run_data(diagnosis())))
    addresses = [value for _, name, value in elements.attributes if name in ("src", "href", "action", "srcset")]
    assert all(re.match(r"#|data:,$|small/repro\.py$", address) for address in addresses), addresses
    assert "@import" not in page_text(run_data(diagnosis()))


def test_names_from_a_program_stay_text():
    calm, wild = (Elements(page_text(run_data(found))) for found in (diagnosis(), hostile()))
    assert sorted(set(wild.tags)) == sorted(set(calm.tags))
    assert not [entry for entry in wild.attributes if entry[1].startswith("on")]
    assert HOSTILE.replace("\0", "\ufffd") in "".join(wild.words).replace("\0", "\ufffd")


def test_data_for_the_script_cannot_end_its_element():
    text = page_text(run_data(hostile()))
    data = re.search(r'id="graph-data">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in data
    assert json.loads(data)[2]["operation"] == HOSTILE


def test_leaves_that_nobody_touched_are_counted_and_not_listed():
    leaves = (leaf("output"), leaf("parameter.weight", 0.0, status=Status.SAME, note=UNCHANGED))
    text = page_text(run_data(diagnosis(leaves=leaves)))
    assert "1 leaf, the worst first; 1 parameters, buffers and inputs left unchanged" in text
    assert "parameter.weight" not in text


def test_the_page_is_made_again_from_the_json_alone(tmp_path):
    write_run(diagnosis(), tmp_path)
    first = (tmp_path / "index.html").read_bytes()
    (tmp_path / "index.html").unlink()
    write_page(read_run(tmp_path), tmp_path)
    assert (tmp_path / "index.html").read_bytes() == first
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index.html", "run.json"]


def test_a_run_of_an_older_version_has_a_page(tmp_path):
    """It says nothing of what was not there yet."""
    write_run(diagnosis(), tmp_path)
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["blame"].pop("kernels") == []
    (tmp_path / "run.json").write_text(json.dumps(data))
    write_page(read_run(tmp_path), tmp_path)


def test_an_investigation_that_ended_early_has_a_page_too():
    found = replace(diagnosis(), graph=None, located=None, smallest=None, blame=None, ended="interrupted")
    text = page_text(run_data(found))
    assert "ended early: interrupted" in text
    assert page_text(run_data(replace(found, verdict=None))).count("could not be checked") == 1


@pytest.mark.parametrize(
    ("script", "shown"), [("", "This is the program itself"), ("import torch", "failed as it should in 3")]
)
def test_a_program_that_was_made_small_has_a_page_and_a_line(tmp_path, script, shown):
    program = SmallProgram(
        text="def make():\n    return abs, (1,)\n",
        script=script,
        output="",
        beyond_default=True,
        reproduced=(3, 3) if script else (0, 0),
        operations=2,
        started_from=60,
        kind="integer",
        reasons=("1 of 2 leaves differ",),
        questions=12,
        finished=True,
    )
    found = replace(diagnosis(), smallest=as_smallest(program, tmp_path / "small", 1.0))
    text = page_text(run_data(found))
    assert "60 operations of the model became a program with 2" in text
    assert shown in text
    assert "interrupted" not in script_line(found)


def test_numbers_that_json_does_not_know(tmp_path):
    write_run(diagnosis(leaves=(leaf(score=float("inf")), leaf("nan", score=float("nan")))), tmp_path)
    assert "inf" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no run: there is no run.json"),
        ("{", "run.json cannot be read"),
        ("[]", "was not written by this version"),
        ('{"schema": 99, "stages": []}', "was not written by this version"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=re.escape(message)):
        read_run(tmp_path)


def test_an_index_of_many_runs(tmp_path):
    for name, subject in (("one", "a.py:make"), ("two & <b>", HOSTILE)):
        write_run(diagnosis(subject=subject), tmp_path / name)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    elements = Elements(write_index(tmp_path).read_text())
    links = [value for tag, name, value in elements.attributes if (tag, name) == ("a", "href")]
    assert sorted(links)[1:] == ["one/index.html", "two%20%26%20%3Cb%3E/index.html"]
    assert any("cannot be read" in word for word in elements.words)


def test_a_histogram_is_drawn_with_its_numbers_in_words():
    spread = plain_data(Histogram(first=-3, eager=(1, 0), candidate=(0, 5), exact=(2, 0)))
    drawn = str(histogram(spread, 0.2))
    assert drawn.count("<rect") == 2
    assert 'class="allowed"' in drawn
    assert "exact elements: 2 of eager, 0 compiled" in drawn
    assert str(histogram(None)) == ""


def test_a_curve_marks_what_was_adopted():
    queries = plain_data(diagnosis().smallest.curve)
    drawn = str(curve(queries, 14))
    assert drawn.count("<circle") == 2
    assert drawn.count('class="adopted"') == 1
    assert 'aria-label="14 operations became 1 in 3 queries"' in drawn
    assert str(curve([], 3)) == ""


@pytest.mark.parametrize(
    ("introduced", "kind", "colour"),
    [
        (None, "", 0),
        (0.0, "", 1),
        (4.0, "", 2),
        (9.0, "value", 3),
        (90.0, "value", 4),
        (1e6, "value", 5),
        (None, "dtype", 3),
    ],
)
def test_a_node_is_coloured_by_what_it_introduces(introduced, kind, colour):
    assert heat({"introduced": introduced, "introduced_kind": kind}, 8.0) == colour


@pytest.mark.parametrize("ending", list(Ending))
def test_however_a_worker_ends_there_is_a_page(ending):
    died = Outcome(ending=ending, signal=11 if ending is Ending.KILLED else None, exit_code=3, phase="candidate 1 2 x")
    value = {"error": {"type": "UsageError", "message": "m", "hint": "h"}}
    if ending is Ending.RETURNED:
        with pytest.raises(UsageError):
            verdict_of(replace(died, value=value), subject="m", backend="b")
        return
    found = replace(diagnosis(), verdict=verdict_of(died, subject="m", backend="b"))
    assert '<section id="leaves"' in page_text(run_data(found))


def test_a_run_that_was_moved_says_where_it_is_now(tmp_path):
    data = moved(run_data(diagnosis()), tmp_path / "elsewhere")
    assert dict(data["lines"])["page"] == f"{tmp_path}/elsewhere/index.html"
    assert dict(data["lines"])["script"].startswith(f"{tmp_path}/elsewhere/small/repro.py")


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        make_folder(tmp_path / "file" / "run")
