"""Ranks in one process: threads that talk through a real store."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from torchparity import records
from torchparity.errors import TargetError, UsageError
from torchparity.judge.settings import Settings
from torchparity.ranks.checking import in_step
from torchparity.ranks.talk import Place, Ranks, place_of, read
from torchparity.ranks.vigil import how_it_died, line_of
from torchparity.records import APART, FAILED, LATE, SILENT, Progress, RunRecord
from torchparity.records.wire import record_from

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def two():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    places = [Place(rank=rank, world=2, host="localhost", port=port, agent=False, launch="t") for rank in range(2)]
    return [Ranks(place, seconds=0.3, limit=60) for place in places]


class Ended(Exception):
    pass


@pytest.fixture
def ended(monkeypatch):
    """Raise where a rank would end, with what it says."""

    def end(self, kind, trouble, *, code=records.UNKNOWN_CODE):
        raise Ended(kind, dict(trouble), code)

    monkeypatch.setattr(Ranks, "end", end)


def both(two, action):
    with ThreadPoolExecutor(2) as threads:
        return [threads.submit(action, rank) for rank in two]


def test_a_place_is_read_from_the_environment():
    place = place_of({**LAUNCHED, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3"})
    assert place is not None
    assert (place.rank, place.world, place.port, place.agent) == (1, 2, 29500, True)
    assert place.launch.endswith(".3")
    assert place_of({}) is None
    assert place_of({**LAUNCHED, "WORLD_SIZE": "1"}) is None
    assert place_of({"RANK": "0", "WORLD_SIZE": "2"}) is None
    with pytest.raises(UsageError, match="must be numbers"):
        place_of({**LAUNCHED, "RANK": "first"})


def test_answers_come_in_the_order_of_ranks(two):
    answers = both(two, lambda rank: (rank.gather("name", f"rank {rank.rank}"), rank.most("runs", rank.rank + 2)))
    assert [future.result() for future in answers] == [(["rank 0", "rank 1"], 3)] * 2


def test_what_one_rank_raises_all_raise(two):
    def act(rank):
        def load():
            if rank.rank == 1:
                raise TargetError("no such file", hint="look again")

        return rank.together("loaded", load)

    for future in both(two, act):
        with pytest.raises(TargetError, match="rank 1: no such file") as caught:
            future.result()
        assert caught.value.hint == "look again"


def test_what_all_ranks_raise_alike_names_none(two):
    def act(rank):
        def load():
            raise TargetError("no such file", hint="look again")

        return rank.together("loaded", load)

    for future in both(two, act):
        with pytest.raises(TargetError, match=r"^no such file"):
            future.result()


def beat(rank, count):
    rank.store.set(f"beat/{rank.rank}", f'{{"count": {count}, "phase": "eager", "seconds": 1.0}}')


def test_a_rank_that_beats_and_does_not_come_is_late(two, ended):
    first, second = two
    finished = threading.Event()

    def live():
        count = 0
        while not finished.is_set():
            count += 1
            beat(second, count)
            time.sleep(0.05)

    heart = threading.Thread(target=live)
    heart.start()
    try:
        with pytest.raises(Ended) as caught:
            first.gather("end of eager", "returned")
        assert caught.value.args == (LATE, {1: (LATE, "")}, 125)
        with pytest.raises(Ended) as caught:  # It has raised, and the other waits for it somewhere.
            first.gather("end of inductor 1", "raised", failure="RuntimeError: no", differs=True)
        assert caught.value.args == (FAILED, {0: (FAILED, "RuntimeError: no")}, 1)
    finally:
        finished.set()
        heart.join()


def test_a_rank_without_a_beat_is_silent_whatever_the_others_raise(two, ended):
    beat(two[1], 1)
    with pytest.raises(Ended) as caught:
        two[0].gather("end of inductor 1", "raised", failure="connection closed by peer", differs=True)
    assert caught.value.args == (SILENT, {1: (SILENT, "")}, 125)


def test_ranks_at_different_questions_are_apart(two, ended):
    for future in both(two, lambda rank: rank.gather(f"question {rank.rank}", None)):
        with pytest.raises(Ended) as caught:
            future.result()
        assert caught.value.args == (APART, {0: (APART, "question 0"), 1: (APART, "question 1")}, 125)


def test_the_first_who_says_why_all_end_is_believed(two):
    beat(two[1], 7)
    two[0].declare(two[0].store, LATE, {1: (LATE, "")})
    two[1].declare(two[1].store, SILENT, {0: (SILENT, "")})
    found = read(two[1].store, "end")
    assert found is not None
    loss = record_from(records.Loss, found)
    assert (loss.kind, loss.code, loss.living) == (LATE, 125, [0, 1])
    assert (loss.standings[1].phase, loss.standings[1].trouble) == ("eager", LATE)


def test_ranks_in_step_tell_each_run_and_make_as_many(two):
    heard = []

    def act(rank):
        settings = in_step(Settings(tolerance=None, progress=heard.append), rank)  # type: ignore[arg-type]
        assert settings.progress is not None and settings.ended is not None
        settings.progress(Progress(run=1, runs=2, name="eager"))
        settings.ended(RunRecord(name="eager", ending="returned", seconds=0.1))
        return settings.agree("how many?", rank.rank)

    assert [future.result() for future in both(two, act)] == [1, 1]
    assert [event.name for event in heard] == ["eager", "eager"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_how_a_process_died_is_read_before_anybody_waits_for_it():
    for code, told in (("import os; os.kill(os.getpid(), 9)", "signal 9"), ("raise SystemExit(3)", "exit code 3")):
        process = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + 20
        while not (found := how_it_died(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == told
        process.wait()
        assert how_it_died(process.pid) == ""


def test_the_line_of_a_thread_is_the_users():
    go_on, started = threading.Event(), threading.Event()

    def linger():
        started.set()
        go_on.wait()

    thread = threading.Thread(target=linger)
    thread.start()
    started.wait()
    time.sleep(0.05)
    try:
        assert line_of(thread.ident).startswith("test_talk.py:")
        assert line_of(thread.ident).endswith("in linger")
        assert line_of(None) == ""
    finally:
        go_on.set()
