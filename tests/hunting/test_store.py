"""The store of a hunt: real processes are killed while they write."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from torchparity import UsageError
from torchparity.hunting.roots import Known, name_of, read_known, same_root
from torchparity.hunting.store import NEW, SETTLED, Bug, Store

PROGRAM = "x = 1\n"
WRITER = """
import sys
from pathlib import Path
from torchparity.hunting.store import SETTLED, Bug, Store

folder, marks = Path(sys.argv[1]), open(sys.argv[2], "a", buffering=1)
store = Store(folder, create=True)
seed = store.next_seed(0)
for seed in [*store.missing_seeds(0), *range(seed, seed + 100000)]:
    status = "differs" if seed % 3 == 0 else "same"
    answer = {"status": status, "kind": "value", "severity": "wrong", "signatures": [], "features": ["a"]}
    store.add(seed, answer, f"text {seed}", 0.0)
    if status == "differs":
        store.add_bug(Bug(name=f"bug{seed % 5}", kind="value", stage="codegen"))
        store.settle(seed, SETTLED, bug=f"bug{seed % 5}")
    print(seed, file=marks)  # Told only when it is stored.
"""


def kill_at_random(tmp_path, times, dice):
    folder, marks = tmp_path / "finds", tmp_path / "marks"
    for _ in range(times):
        before = marks.stat().st_size if marks.exists() else 0
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(marks)])
        deadline = time.monotonic() + 60
        while (not marks.exists() or marks.stat().st_size == before) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(dice.random() * 0.05)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    return folder, [int(line) for line in marks.read_text().split()]


def assert_nothing_is_lost(folder, told):
    store = Store(folder)
    held = [row["seed"] for row in store.programs()]
    assert len(told) == len(set(told)), "told twice"
    assert set(told) <= set(held), "told, and lost"
    assert len(held) - len(told) <= 60, "more than the one at each kill was stored and not told"
    finds = {find.seed: find for find in store.finds()}
    assert set(finds) == {seed for seed in held if seed % 3 == 0}
    for seed in told:
        if seed % 3 == 0:
            assert finds[seed].state == SETTLED
    with sqlite3.connect(folder / "hunt.db") as connection:
        assert connection.execute("pragma integrity_check").fetchone()[0] == "ok"


def test_a_kill_loses_nothing(tmp_path):
    assert_nothing_is_lost(*kill_at_random(tmp_path, 4, random.Random(0)))


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path):
    assert_nothing_is_lost(*kill_at_random(tmp_path, 50, random.Random(1)))


def answer(status, **more):
    return {"status": status, "kind": "value", "severity": "wrong", "signatures": [], "reasons": ["so"], **more}


def test_a_program_counts_once(tmp_path):
    store = Store(tmp_path, create=True)
    assert store.add(3, answer("differs"), "a", 0.0)
    assert not store.add(3, answer("same"), "b", 1.0)
    assert store.statuses() == {"differs": 1}
    assert [find.text for find in store.finds(NEW)] == ["a"]


def test_seeds_without_an_answer_are_found_again(tmp_path):
    store = Store(tmp_path, create=True)
    for seed in (10, 11, 14):
        store.add(seed, answer("same"), "", 0.0)
    assert store.missing_seeds(10) == [12, 13]
    assert store.next_seed(10) == 15


def test_a_newer_store_is_refused(tmp_path):
    Store(tmp_path, create=True).close()
    with sqlite3.connect(tmp_path / "hunt.db") as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(UsageError, match="newer torchparity"):
        Store(tmp_path)


def test_a_folder_without_a_hunt_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no hunt"):
        Store(tmp_path)


def test_roots_are_told_apart():
    bug = Bug(name="a", kind="value", stage="codegen", part="remainder", switch={"inductor.cpp.simdlen": 1})
    assert same_root(bug, ("value", "codegen", "remainder", "inductor.cpp.simdlen"))
    assert not same_root(bug, ("value", "codegen", "remainder", ""))
    assert same_root(bug, ("integer", "codegen", "remainder", "inductor.cpp.simdlen"))
    assert not same_root(bug, ("stride", "codegen", "remainder", "inductor.cpp.simdlen"))
    assert name_of(("value", "codegen", "remainder"), ["codegen-remainder-value"]) == "codegen-remainder-value-2"


def test_known_bugs_are_recognised(tmp_path):
    listed = read_known()
    assert all(entry.number for entry in listed)
    text = "def program(a):\n    return torch.nn.functional.dropout(a, 0.5, training=False).add_(1)\n"
    found = [
        entry.number for entry in listed if entry.covers(Bug(name="", kind="value", stage="decomposition", text=text))
    ]
    assert found == ["195422"]
    assert not Known(kind="dtype", stage="", part="", calls=(), number="1").covers(
        Bug(name="", kind="value", stage="", text="")
    )
    (tmp_path / "known.toml").write_text("[[bug]]\ntitle = 'no number'\n")
    with pytest.raises(UsageError, match="no list of known bugs"):
        read_known(tmp_path / "known.toml")


def test_facts_are_kept(tmp_path):
    store = Store(tmp_path, create=True)
    store.set_fact("seed", json.dumps(7))
    store.close()
    assert Store(tmp_path).fact("seed") == "7"


@pytest.mark.parametrize(("status", "kept"), [("same", False), ("differs", False), ("unknown", True), ("error", True)])
def test_a_program_without_a_verdict_is_kept_with_the_reason(tmp_path, status, kept):
    store = Store(tmp_path / "finds", create=True)
    answer = {"status": status, "reasons": ["no answer:\nkilled"], "options": {"dynamic": True}}
    store.add(7, {**answer, "kind": "value", "severity": "wrong"}, PROGRAM, 0.0)
    place = tmp_path / "finds" / "undecided" / "7.py"
    assert place.is_file() is kept
    if kept:
        text = place.read_text()
        assert text == f'# {status}: no answer: killed\n# options: {{"dynamic": true}}\n' + PROGRAM
