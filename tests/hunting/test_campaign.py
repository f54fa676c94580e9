"""A campaign with real workers: finds are settled, handed over, and never in the way of each other."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import torchparity
from torchparity.errors import ResourceError
from torchparity.hunting.campaign import WORN, Campaign, Plan, places, worn
from torchparity.hunting.inquiry import Inquiry, Others
from torchparity.hunting.jobs import PRELOAD, draw_and_judge, request_of
from torchparity.hunting.store import GONE, LIKELY, NEW, SETTLED, STUCK, Bug, Find, Store
from torchparity.minifier.programs import Asking
from torchparity.programs.script import HANGS
from torchparity.records import Blame, Since, Status, Trial
from torchparity.verbs.hunt import blaming
from torchparity.workers.pool import Pool

OPTIONS = {"backend": "eager"}
TEXT = """
import torch

def program(a, b):
    c = a.flip(0) {operation} 2
    d = c + torch.compiler.is_compiling()
    return d.sum(), b.cos()

def make():
    return program, (torch.arange(6.0), torch.ones(2))
"""
SMALL = "def program(a):\n    return a.flip(0)\n\ndef make():\n    return program, (torch.ones(2),)"


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=places(1), preload=(*PRELOAD, "torchparity.verbs.jobs")) as pool:
        yield pool


def found(store, pool, seed, text, options=OPTIONS):
    """Put a find into a store, as a campaign would."""
    place = store.folder / f"{seed}.py"
    place.write_text(text)
    from torchparity.hunting.jobs import told

    verdict = Asking(pool, store.folder).verdict(text, request_of(dict(options)))
    answer = told(verdict) | {"options": dict(options)}
    assert store.add(seed, answer, text, time.time())


def test_a_find_becomes_a_bug_with_a_script(pool, tmp_path):
    store = Store(tmp_path, create=True)
    found(store, pool, 3, TEXT.format(operation="*"), options={**OPTIONS, "dynamic": True, "no_grad": True})
    asked = []

    def since(script):
        asked.append(script.read_text())
        return Since(script=str(script), answers=())

    inquiry = Inquiry(store, pool, Others(blame=blaming(pool), since=since), known=[])
    inquiry.settle(store.finds(NEW)[0])
    (find,) = store.finds()
    (bug,) = store.bugs()
    assert find.state == SETTLED
    assert "cos" not in bug.text
    folder = tmp_path / "bugs" / bug.name
    assert {path.name for path in folder.iterdir()} == {"program.py", "repro.py", "issue.md", "bug.json", "since.json"}
    assert asked == [(folder / "repro.py").read_text()]
    assert subprocess.run([sys.executable, folder / "repro.py"], check=False, capture_output=True).returncode == 1
    issue = (folder / "issue.md").read_text()
    assert "AssertionError" in issue
    assert "### Since when" in issue
    assert bug.script in issue
    facts = json.loads((folder / "bug.json").read_text())
    assert (facts["seed"], facts["options"]) == (3, OPTIONS)  # It fails without the other two.
    # One that is like it is the same bug, and is counted with it.
    found(store, pool, 4, TEXT.format(operation="*").replace("arange(6.0)", "arange(5.0)"))
    inquiry.settle(store.finds(NEW)[0])
    assert len(store.bugs()) == 1
    assert [find.state for find in store.finds()] == [SETTLED, SETTLED]
    # After three of them, one that looks like it is counted without a question.
    for seed in (5, 6):
        store.add(seed, dict(find.answer), find.text, time.time())
    store.settle(5, SETTLED, bug=bug.name)
    inquiry.settle(store.finds(NEW)[0])
    assert store.finds()[-1].state == LIKELY
    inquiry.close()


def test_what_is_not_seen_again_is_gone_and_what_hangs_is_handed_over(pool, tmp_path, monkeypatch):
    store = Store(tmp_path, create=True)
    right = TEXT.format(operation="*").replace("torch.compiler.is_compiling()", "1")
    wrong = {"kind": "value", "error": "", "frame": "", "summary": ""}
    facts = {"status": "differs", "severity": "wrong", "reasons": ["it was so"], "leaves": ["output"], "exact": 0}
    store.add(1, {**facts, "kind": "value", "signatures": [wrong], "options": OPTIONS}, right, 1.0)
    hanging = {**facts, "kind": HANGS, "severity": "fails", "signatures": [{**wrong, "kind": HANGS}]}
    store.add(2, {**hanging, "options": OPTIONS}, right, 2.0)
    monkeypatch.setattr("torchparity.programs.script.HANG_SECONDS", 1)
    inquiry = Inquiry(store, pool, Others(blame=lambda *_: None), known=[])
    for find in store.finds(NEW):
        inquiry.settle(find)
    assert {find.seed: find.state for find in store.finds()}[1] == GONE
    assert [bug.kind for bug in store.bugs()] == [HANGS]
    assert (tmp_path / "bugs" / store.bugs()[0].name / "program.py").read_text() == right
    inquiry.close()


def test_what_fails_by_chance_is_looked_at_again(pool, tmp_path):
    store, runs = Store(tmp_path, create=True), tmp_path / "runs"
    luck = f"open({str(runs)!r}, 'a').write('.')\nLUCK = len(open({str(runs)!r}).read()) % 3 == 0\n"
    text = luck + TEXT.format(operation="*").replace("is_compiling()", "is_compiling() * LUCK")
    found(store, pool, 1, TEXT.format(operation="*"))
    find = replace(store.finds(NEW)[0], text=text)

    class Seen(Exception):
        pass

    class Seeing(Inquiry):
        def _plainer(self, text, options, pinned):
            raise Seen

    inquiry = Seeing(store, pool, Others(blame=lambda *_: None), known=[])
    with pytest.raises(Seen):
        inquiry.settle(find)
    assert len(runs.read_text()) == 3
    inquiry.close()


def test_what_looks_like_no_known_bug_comes_first_then_the_most_severe(pool, tmp_path):
    store = Store(tmp_path, create=True)
    text = TEXT.format(operation="*").replace("flip(0)", "{operation}")
    finds = (
        ("flip(0)", "layout"),
        ("flip(0)", "wrong"),
        ("roll(1)", "layout"),
        ("roll(1)", "fails"),
        ("neg()", "wrong"),
    )
    for seed, (operation, severity) in enumerate(finds):
        answer = {"status": "differs", "severity": severity, "kind": "value", "signatures": [], "options": OPTIONS}
        store.add(seed, answer, text.format(operation=operation), 1.0)
    bug = Bug(
        name="flips", kind="integer", stage="", part="", switch={}, severity="wrong", text=SMALL, script="", at=1.0
    )
    store.add_bug(bug)
    inquiry = Inquiry(store, pool, Others(blame=lambda *_: None), known=[])
    assert inquiry.next_find({3}).seed == 1
    store.settle(1, SETTLED, bug="flips")  # From now on others that flip have seen one like them.
    assert [find.seed for find in inquiry.waiting({4}, new=True)] == [3, 2]  # They wait until the last.
    order = []
    while (find := inquiry.next_find()) is not None:
        order.append(find.seed)
        store.settle(find.seed, GONE)
    assert order == [3, 4, 2, 0]
    inquiry.close()


def test_what_the_same_part_of_the_compiler_is_to_blame_for_is_one_more_and_is_not_made_small(tmp_path):
    store, text = Store(tmp_path, create=True), TEXT.format(operation="*")
    answer = {"status": "differs", "severity": "wrong", "kind": "value", "signatures": [{}], "options": OPTIONS}
    store.add(1, answer, text, 1.0)
    flips = Bug(name="flips", kind="integer", stage="lowerings", part="flip", text=SMALL)
    store.add_bug(flips)
    store.add_bug(replace(flips, name="others", part="sum", text=SMALL.replace("flip(0)", "roll(1)")))
    asked, trial = [], Trial(change="as it is", status=Status.DIFFERS, kind="value", seconds=1.0)
    told = {"subject": "program", "kind": "value", "stage": "lowerings", "failing": trial, "trials": (), "seconds": 1.0}

    def blaming(part):
        def blame(place, options):
            asked.append(place.read_text())
            return Blame(**told, part=part)

        return blame

    def one_more(part):
        inquiry = Inquiry(store, None, Others(blame=blaming(part)), known=[])
        found = inquiry._one_more(store.finds()[0])
        inquiry.close()
        return found

    # Another part is another bug, and where no part is told nothing is known; a bug that it does not look like is none.
    assert [one_more(part) for part in ("roll", "", "sum")] == [None] * 3
    assert one_more("flip").name == "flips"
    assert set(asked) == {text}
    inquiry = Inquiry(store, None, Others(blame=blaming("flip")), known=[])
    inquiry.settle(store.finds()[0])
    inquiry.close()
    (find,) = store.finds()
    assert (find.state, find.bug, find.small) == (SETTLED, "flips", "")


def test_in_the_last_part_of_a_hunt_finds_have_all_there_is(tmp_path):
    store = Store(tmp_path, create=True)
    answer = {"status": "differs", "severity": "wrong", "kind": "value", "signatures": [{}], "options": OPTIONS}
    for seed in (1, 2):
        store.add(seed, answer, TEXT.format(operation="*"), 1.0)
    store.add_bug(Bug(name="flips", kind="value", stage="", text=SMALL))
    store.settle(1, SETTLED, bug="flips")
    inquiry = Inquiry(store, None, Others(blame=lambda *_: None), known=[])
    campaign = Campaign(store, None, inquiry, Plan(minutes=10, workers=2, crowd=6))
    assert campaign._hunters() == 12  # What looks like a bug that is settled waits,
    campaign.last_part = 0.0
    assert campaign._hunters() == 6  # until now.
    for seed in (3, 4):
        store.add(seed, answer, TEXT.format(operation="*"), 1.0)
    assert campaign._hunters() == 0
    inquiry.close()


def test_a_find_that_cannot_be_settled_is_in_nobodys_way(pool, tmp_path):
    store = Store(tmp_path, create=True)
    for seed in (100, 101):
        found(store, pool, seed, TEXT.format(operation="*+"[seed % 2]))

    class Broken(Inquiry):
        def settle(self, find):
            if find.seed == 100:
                raise ZeroDivisionError("as it happens")
            self.store.settle(find.seed, SETTLED)

    inquiry = Broken(store, pool, Others(blame=lambda *_: None), known=[])
    Campaign(store, pool, inquiry, Plan(programs=3, workers=1, options=OPTIONS, seed=200)).run()
    states = {find.seed: find for find in store.finds()}
    assert (states[100].state, states[100].note) == (STUCK, "ZeroDivisionError: as it happens")
    assert states[101].state == SETTLED
    assert store.statuses().total() == 5
    assert not (tmp_path / "drawn").exists()
    inquiry.close()


def test_an_interrupt_does_not_wait_for_finds(pool, tmp_path):
    store = Store(tmp_path, create=True)
    found(store, pool, 100, TEXT.format(operation="*"))

    class Slow(Inquiry):
        def settle(self, find):
            time.sleep(120)

    def interrupt(_store):
        raise KeyboardInterrupt

    inquiry = Slow(store, pool, Others(blame=lambda *_: None), known=[])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Campaign(store, pool, inquiry, Plan(programs=500, workers=1, options=OPTIONS), interrupt).run()
    assert time.monotonic() - began < 60
    assert [find.state for find in store.finds()] == [NEW]
    inquiry.close()


def test_what_cannot_be_hunted_with_is_refused_before_it_begins(tmp_path):
    for options in ({"backend": "nonsense"}, {"backendd": "eager"}):
        with pytest.raises(torchparity.ParityError):
            torchparity.hunt(tmp_path / "h", programs=1, options=options)
    with pytest.raises(torchparity.ParityError):
        torchparity.hunt(tmp_path / "h", programs=1, releases=["newest"])
    assert not (tmp_path / "h").exists()


def test_a_hunt_that_comes_to_nothing_ends_and_says_why(pool, tmp_path):
    store = Store(tmp_path, create=True)
    inquiry = Inquiry(store, pool, Others(blame=blaming(pool)), known=[])
    campaign = Campaign(store, pool, inquiry, Plan(minutes=5, workers=1, options=OPTIONS))
    shutil.rmtree(campaign.drawn)
    with pytest.raises(ResourceError, match="programs one after the other could not be judged: the process") as ended:
        campaign.run()
    assert "--resume" in ended.value.hint
    assert set(store.statuses()) == {"error"}
    inquiry.close()


@pytest.mark.slow
def test_two_hunts_do_not_share_a_folder_and_one_that_is_ended_says_what_it_leaves(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torchparity",
        "hunt",
        "--no-operators",
        "--backend",
        "eager",
        "--workers",
        "1",
        "-q",
    ]
    first = subprocess.Popen([*command, "--out", "finds"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 100
        while not (tmp_path / "finds" / "hunt.db").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        second = subprocess.run(
            [*command, "--resume", "finds"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert second.returncode == 2
        assert second.stderr.startswith("error: another hunt is running in finds\nhint: ")
        first.terminate()
        assert first.communicate(timeout=60)[1].splitlines()[-1] == "interrupted; what was found is kept"
        assert first.returncode == 130
    finally:
        first.kill()


def test_what_shows_a_bug_once_more_is_drawn_less():
    def find(seed, bug, *features, text=""):
        answer = {"kind": "value", "features": [*features, "fired:x", "with:y"]}
        return Find(seed=seed, text=text, options={}, answer=answer, bug=bug)

    first, other = find(1, "lost", "view:t", "write:add_"), find(2, "wrong", "view:t")
    unsettled = find(3, "", "view:t", "layer:relu")
    assert not worn([first, other, unsettled])
    again = [find(number, "lost", "write:add_", "write:add_") for number in (4, 5)]
    assert worn([first, other, unsettled, *again]) == {"write:add_": 2 * WORN}
    flips = Bug(name="flips", kind="value", stage="", text=SMALL)
    alike = find(6, "", "view:flip", text=TEXT.format(operation="*"))
    assert worn([first, alike, unsettled], [flips]) == {"view:flip": WORN}


def test_what_is_wanted_more_is_drawn_more(tmp_path):
    payload = {
        "seeds": [1, 2, 3], "folder": str(tmp_path), "counts": {}, "options": OPTIONS, "special": False, "share": 0.0,
        "openings": str(tmp_path / "none"), "builder": str(tmp_path / "nobody"),
    }  # fmt: skip
    for liked, often in (({}, False), ({"reduction:argmax": 1e9, "reduction:amin": 1e9}, True)):
        draw_and_judge(payload | {"liked": liked}, lambda phase: None)
        features = [json.loads((tmp_path / f"{seed}.facts").read_text())["features"] for seed in payload["seeds"]]
        drawn = [name for names in features for name in names if name.startswith("reduction:")]
        assert drawn
        assert (set(drawn) <= {"reduction:argmax", "reduction:amin"}) is often
