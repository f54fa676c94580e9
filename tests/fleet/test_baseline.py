"""Baselines: what is new, gone, changed and expired; a file that people read and merge."""

import random
import subprocess
from dataclasses import replace
from datetime import date, timedelta

import pytest

from torchparity import UsageError
from torchparity.fleet.baseline import Known, compare, failure_of, read_baseline, updated, write_baseline
from torchparity.fleet.cells import Cell
from torchparity.fleet.store import Judged

TODAY = date(2026, 11, 17)
LATER = TODAY + timedelta(days=30)


class NoStore:
    """A store that knows no verdict: nothing raised."""

    def verdict(self, cell):
        return None


STORE = NoStore()


def judged(number, status="differs", kind="value", leaves=("output",), **options):
    cell = Cell(target=f"m.py:{number}", options=options)
    return Judged(id=number, cell=cell, status=status, kind=kind if status == "differs" else "", leaves=leaves)


def known_of(cell, **facts):
    return replace(failure_of(cell), **facts)


def test_only_what_is_new_fails():
    cells = [judged(1), judged(2), judged(3, "same", leaves=()), judged(4, "unknown", leaves=()), judged(5, "")]
    baseline = [known_of(cells[0], until=LATER), known_of(judged(3)), known_of(judged(9))]
    found = compare(cells, STORE, baseline, TODAY)
    assert [cell.id for cell in found.known] == [1]
    assert [cell.id for cell in found.new] == [2, 4]
    assert [entry.target for entry in found.gone] == ["m.py:3"], "9 is not in this sweep, so nobody knows"
    assert [cell.id for cell in found.failing] == [2, 4]
    assert found.words() == {1: "known", 2: "new", 4: "new"}


def test_a_failure_of_another_kind_or_leaf_has_changed():
    baseline = [known_of(judged(1))]
    for other in (judged(1, kind="dtype"), judged(1, leaves=("grad.weight",)), judged(1, "unknown", leaves=())):
        assert [cell.id for cell in compare([other], STORE, baseline, TODAY).changed] == [1]
    assert compare([judged(1, train=True)], STORE, baseline, TODAY).new


def test_what_is_accepted_ends_on_a_day():
    baseline = [known_of(judged(1), until=TODAY)]
    assert compare([judged(1)], STORE, baseline, TODAY).known
    assert compare([judged(1)], STORE, baseline, TODAY + timedelta(days=1)).expired


def test_an_update_keeps_what_people_wrote():
    baseline = [known_of(judged(1), until=LATER, reason="upstream #1"), known_of(judged(3)), known_of(judged(9))]
    cells = [judged(1), judged(2), judged(3, "same", leaves=())]
    entries = updated(compare(cells, STORE, baseline, TODAY), STORE, baseline, until=LATER, reason="")
    told = {entry.target: (entry.until, entry.reason) for entry in entries}
    assert told == {"m.py:1": (LATER, "upstream #1"), "m.py:2": (LATER, ""), "m.py:9": (None, "")}
    again = compare(cells, STORE, entries, TODAY)
    assert not again.failing
    assert not again.gone


def test_the_file_says_what_was_written(tmp_path):
    odd = 'a "quoted"\tname\\ é\n'
    entries = [
        known_of(judged(number, train=bool(number % 2)), until=LATER if number % 3 else None, reason=odd[: number % 9])
        for number in range(20)
    ]
    place = tmp_path / "baseline.toml"
    write_baseline(place, entries)
    back = read_baseline(place)
    assert {entry.fingerprint for entry in back} == {entry.fingerprint for entry in entries}
    assert {entry.until for entry in back} == {LATER, None}
    lines = [line for line in place.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 20
    shuffled = random.Random(0).sample(entries, 20)
    write_baseline(tmp_path / "other.toml", shuffled)
    assert (tmp_path / "other.toml").read_text() == place.read_text()


def test_lines_of_two_people_merge(tmp_path):
    def git(*words):
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, capture_output=True
        )

    place = tmp_path / "baseline.toml"
    many = [known_of(judged(number)) for number in range(0, 200, 4)]
    git("init", "-b", "main")
    write_baseline(place, many)
    git("add", "."), git("commit", "-m", "begun")
    git("checkout", "-b", "other")
    write_baseline(place, [*many, known_of(judged(50))])
    git("commit", "-am", "one")
    git("checkout", "main")
    write_baseline(place, [*many, known_of(judged(150))])
    git("commit", "-am", "two")
    git("merge", "other")
    assert len(read_baseline(place)) == len(many) + 2


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        '"abc" = 3\n',
        '"abc" = { target = "a", options = "b" }\n',
        '"abc" = { target = "a", colour = "b" }\n',
        f'"{Known(target="a", options="b").fingerprint}" = {{ target = "a", options = "b", until = "soon" }}\n',
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path, text):
    (tmp_path / "baseline.toml").write_text(text)
    with pytest.raises(UsageError, match="is no baseline"):
        read_baseline(tmp_path / "baseline.toml")


def test_no_file_knows_nothing(tmp_path):
    assert read_baseline(tmp_path / "baseline.toml") == []
