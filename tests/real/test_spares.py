"""Processes that wait for a query: each takes one, and whatever becomes of them, every query is answered."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest

from torchparity.workers import processes
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import GRACE_SECONDS, Pool
from torchparity.workers.query import BEGIN_SECONDS
from torchparity.workers.spare import DEATHS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the extras of isolation need Linux")

JOBS = """
import os, signal, time

prepared = []

def prepare_device():
    prepared.append(os.getpid())

def who(payload, announce):
    return [os.getpid(), prepared]

def crashes(payload, announce):
    os.kill(os.getpid(), signal.SIGSEGV)

def leaves(payload, announce):
    os._exit(3)

def raises(payload, announce):
    prepared.append("mine")
    raise ValueError("on purpose")

def sleeps(payload, announce):
    time.sleep(60)

def kills(payload, announce):
    for pid in payload:
        os.kill(pid, signal.SIGKILL)
    return "done"

def much(payload, announce):
    return len(payload)
"""
ENDINGS = {
    "who": Ending.RETURNED, "crashes": Ending.KILLED, "leaves": Ending.EXITED, "raises": Ending.RAISED,
    "sleeps": Ending.TIMED_OUT,
}  # fmt: skip


def jobs_in(folder, monkeypatch, name, text=JOBS):
    (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return name


def waiting(pool, count):
    """The processes that wait, once there are so many and each is ready."""
    end = time.monotonic() + 30
    while len(found := processes.children(pool.server.process.pid)) != count and time.monotonic() < end:
        time.sleep(0.02)
    assert len(found) == count
    return found


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        name = jobs_in(tmp_path_factory.mktemp("jobs"), patch, "jobs_of_spares")
        with Pool(workers=2, compilers=False, preload=(name,), spares=2) as pool:
            assert pool.wait_until_ready()
            yield pool
            root = pool.root
        assert not root.exists()


def test_a_query_takes_one_that_is_prepared_and_the_next_another(pool):
    before = waiting(pool, 2)
    first, prepared = pool.run("jobs_of_spares:who", None).value
    assert first in before
    assert prepared == [first]
    second, prepared = pool.run("jobs_of_spares:who", None).value
    assert second != first
    assert prepared == [second]
    assert pool.run("jobs_of_spares:much", "x" * (8 << 20)).value == 8 << 20


def test_whatever_queries_do_each_is_answered_and_as_many_wait_as_before(pool):
    kinds = [kind for kind in ENDINGS for _ in range(4)]
    random.Random(0).shuffle(kinds)
    asked = [(kind, pool.submit(f"jobs_of_spares:{kind}", None, limits=Limits(seconds=1.0))) for kind in kinds]
    for kind, future in asked:
        assert future.result().ending is ENDINGS[kind]
    left = waiting(pool, 2)
    assert len(list((pool.root / "queries").iterdir())) == 2
    seen, prepared = pool.run("jobs_of_spares:who", None).value
    assert seen in left
    assert prepared == [seen]


def test_those_that_are_killed_are_replaced_and_a_query_does_without(pool):
    killed = waiting(pool, 2)
    assert pool.run("jobs_of_spares:kills", sorted(killed)[1:]).ending in (Ending.RETURNED, Ending.KILLED)
    assert pool.run("jobs_of_spares:who", None).ending is Ending.RETURNED
    for pid in waiting(pool, 2):
        os.kill(pid, signal.SIGSTOP)
    outcome = pool.run("jobs_of_spares:who", None, limits=Limits(seconds=1.0))
    assert outcome.ending is Ending.RETURNED  # In a process of its own, with all of its time.
    assert outcome.value[1] == []
    assert BEGIN_SECONDS < GRACE_SECONDS  # Or the pool would take its server for lost.


@pytest.mark.parametrize("deed", ["os._exit(9)", pytest.param("os.kill(os.getpid(), 11)", marks=pytest.mark.slow)])
def test_where_none_can_be_prepared_queries_start_by_themselves(tmp_path, monkeypatch, deed):
    name = f"dying_{len(deed)}"
    jobs_in(tmp_path, monkeypatch, name, JOBS.replace("prepared.append(os.getpid())", deed))
    with Pool(workers=1, compilers=False, preload=(name,), spares=1) as pool:
        assert pool.wait_until_ready()
        for _ in range(DEATHS + 2):
            outcome = pool.run(f"{name}:who", None)
            assert outcome.ending is Ending.RETURNED
            assert outcome.value[1] == []
        assert processes.children(pool.server.process.pid) == set()


def test_what_cannot_be_prepared_is_the_querys_to_meet(tmp_path, monkeypatch):
    name = jobs_in(tmp_path, monkeypatch, "raising", JOBS.replace("prepared.append(os.getpid())", "raise OSError"))
    with Pool(workers=1, compilers=False, preload=(name,), spares=1) as pool:
        assert pool.run(f"{name}:who", None).ending is Ending.RETURNED
