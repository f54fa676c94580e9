"""The pool against hostile candidates: every one gets an answer, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from torchparity.errors import UsageError
from torchparity.verbs.asking import PRELOAD
from torchparity.workers import processes
from torchparity.workers.connection import LOG, MARK
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the extras of isolation need Linux")

HERE = Path(__file__).parent
SHORT = Limits(seconds=1.0)
# A fork shares the server's pages; this is well above what one that does nothing is charged.
SMALL = Limits(seconds=30.0, memory=768 << 20)
LONG = Limits(seconds=60.0)

EXPECTED = {
    "returns": Ending.RETURNED,
    "raises": Ending.RAISED,
    "raises_base_exception": Ending.RAISED,
    "raises_keyboard_interrupt": Ending.RAISED,
    "raises_without_text": Ending.RAISED,
    "returns_no_json": Ending.RAISED,
    "returns_itself": Ending.RAISED,
    "returns_much": Ending.RETURNED,
    "recurses": Ending.RAISED,
    "system_exit": Ending.EXITED,
    "system_exit_with_text": Ending.EXITED,
    "leaves_in_silence": Ending.EXITED,
    "leaves": Ending.EXITED,
    "becomes_another_program": Ending.EXITED,
    "segfaults": Ending.KILLED,
    "aborts": Ending.KILLED,
    "kills_itself": Ending.KILLED,
    "uses_up_its_cpu_limit": Ending.KILLED,
    "ignores_signals_and_loops": Ending.TIMED_OUT,
    "sleeps": Ending.TIMED_OUT,
    "backtracks": Ending.TIMED_OUT,
    "stops_itself": Ending.TIMED_OUT,
    "closes_everything_and_waits": Ending.TIMED_OUT,
    "allocates": Ending.OUT_OF_MEMORY,
    "allocates_in_children": Ending.OUT_OF_MEMORY,
    "raises_memory_error": Ending.OUT_OF_MEMORY,
    "asks_torch_for_too_much": Ending.OUT_OF_MEMORY,
    "limits_its_own_memory": Ending.OUT_OF_MEMORY,
    "floods_stdout": Ending.RETURNED,
    "floods_stderr": Ending.RETURNED,
    "floods_phases": Ending.RETURNED,
    "prints_binary": Ending.RETURNED,
    "leaves_a_child": Ending.RETURNED,
    "leaves_a_daemon": Ending.RETURNED,
    "leaves_a_hydra": Ending.RETURNED,
    "leaves_another_program": Ending.RETURNED,
    "leaves_a_multiprocessing_child": Ending.RETURNED,
    "leaves_threads": Ending.RETURNED,
    "leaves_an_exit_handler": Ending.RETURNED,
    "returns_twice": Ending.RETURNED,
    "raises_twice": Ending.RAISED,
    "closes_everything": Ending.EXITED,
    "writes_garbage": Ending.EXITED,
    "writes_a_flood_of_garbage": Ending.EXITED,
    "writes_half_a_frame": Ending.EXITED,
    "writes_a_frame_that_is_no_json": Ending.EXITED,
    "writes_an_answer_and_crashes": Ending.KILLED,
    "writes_an_answer_that_is_no_json": Ending.EXITED,
    "opens_all_descriptors": Ending.RAISED,
    "signals_the_server": Ending.RETURNED,
    "removes_its_folder": Ending.RETURNED,
    "leaves_files": Ending.RETURNED,
    "changes_the_world": Ending.RETURNED,
}
# These end the server, which takes seconds to replace.
SERVER_ENDS = {
    "kills_the_server": Ending.KILLED,
    "stops_the_server": Ending.KILLED,
}
SLOW = {"uses_up_its_cpu_limit", "allocates", "floods_stdout", "floods_stderr", "floods_phases", "returns_much"}


def limits_for(kind):
    if "allocates" in kind:
        return SMALL
    return SHORT if EXPECTED.get(kind) is Ending.TIMED_OUT else LONG


def run(pool, kind, payload=None) -> Outcome:
    return pool.run(f"hostile:{kind}", payload, limits=limits_for(kind))


def processes_of(pool):
    return processes.marked(MARK, pool.mark)


def assert_only_the_server_is_left(pool):
    wait_for(lambda: processes_of(pool) == {pool.server.process.pid}, 5.0)  # The last of them may be about to go.
    assert processes.children(pool.server.process.pid) == set()
    assert list((pool.root / "queries").iterdir()) == []


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=2, limits=LONG, compilers=False, spares=0) as pool:
        assert pool.wait_until_ready()
        yield pool
        root = pool.root
    assert not root.exists()
    assert processes_of(pool) == set()


# --- one at a time -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_kind_gets_its_ending(pool, kind):
    outcome = run(pool, kind)
    assert outcome.ending is EXPECTED[kind], outcome
    assert (outcome.value is not None) <= (outcome.ending is Ending.RETURNED)
    assert_only_the_server_is_left(pool)


def test_a_value_comes_back_with_its_phase(pool):
    outcome = run(pool, "returns", {"a": [1, 2.5, None, "ü"]})
    assert outcome.value == {"payload": {"a": [1, 2.5, None, "ü"]}, "sum": 45}
    assert outcome.phase == "only phase"
    assert outcome.error is None
    assert outcome.seconds > 0
    assert len(run(pool, "returns_much").value) == 50 << 20


def test_an_error_comes_back_as_facts(pool):
    outcome = run(pool, "raises")
    assert (outcome.error.type, outcome.error.message) == ("ValueError", "wrong on purpose")
    assert "hostile.py" in outcome.error.traceback
    assert outcome.phase == "before the error"
    assert run(pool, "raises_base_exception").error.type == "hostile.Weird"
    assert run(pool, "raises_without_text").error.message == "<its text could not be made>"
    assert run(pool, "returns_no_json").error.type == "TypeError"
    assert run(pool, "recurses").error.type == "RecursionError"


def test_a_job_that_is_not_there_is_an_error_of_the_query(pool):
    assert pool.run("no_such_module:job", None).error.type == "ModuleNotFoundError"
    assert pool.run("hostile:no_such_job", None).error.type == "AttributeError"


def test_signals_and_exit_codes_are_told(pool):
    assert run(pool, "segfaults").signal == signal.SIGSEGV
    assert run(pool, "aborts").signal == signal.SIGABRT
    assert run(pool, "kills_itself").signal == signal.SIGKILL
    assert run(pool, "leaves").exit_code == 3
    assert run(pool, "leaves_in_silence").exit_code == 0
    assert run(pool, "system_exit").exit_code == 5
    assert run(pool, "system_exit_with_text").exit_code == 1


def test_what_was_said_before_a_crash_is_kept(pool):
    outcome = run(pool, "segfaults")
    assert outcome.phase == "the crash"
    assert "last words" in outcome.output
    assert "Segmentation fault" in outcome.output


def test_only_the_end_of_a_flood_is_kept(pool):
    for kind in ("floods_stdout", "floods_stderr"):
        output = run(pool, kind).output
        assert len(output) == 64 * 1024
        assert output.rstrip().endswith("the end of the flood")


def test_the_first_of_two_returns_counts(pool):
    assert {run(pool, "returns_twice").value for _ in range(5)} == {"first"}


def test_a_query_sees_nothing_of_the_one_before(pool):
    before = run(pool, "sees_the_world").value
    assert run(pool, "changes_the_world").ending is Ending.RETURNED
    after = run(pool, "sees_the_world").value
    assert after == before
    assert before["cwd"] == str(Path.cwd())
    assert before["files"] == []
    assert before["stdin"] == ""
    assert before["session"]
    # stdin, stdout, stderr, the answer, and the folder that is being listed.
    assert before["descriptors"] == 5


def test_phases_are_heard_as_they_come(pool):
    heard = []
    future = pool.submit("hostile:floods_phases", None, on_phase=heard.append)
    assert future.result().phase == "phase 19999"
    assert heard
    assert all(phase.startswith("phase ") for phase in heard)


def test_an_error_in_on_phase_is_the_callers_own(pool):
    assert pool.submit("hostile:returns", None, on_phase=lambda phase: 1 / 0).result().ending is Ending.RETURNED
    assert run(pool, "returns").ending is Ending.RETURNED


def test_a_question_that_cannot_be_asked_is_refused(pool):
    with pytest.raises(UsageError, match="names no job"):
        pool.submit("just_a_name", None)
    with pytest.raises(UsageError, match="not JSON"):
        pool.submit("hostile:returns", object())


def test_the_server_may_fork(pool):
    """One thread: a lock that another thread held at the fork would never be released."""
    assert len(list(Path(f"/proc/{pool.server.process.pid}/task").iterdir())) == 1


def test_a_compiled_file_that_was_cut_short_is_not_found_by_the_next_query(pool, tmp_path):
    """Killed in the middle, a C++ compiler leaves half a file under the name that the next query looks for."""
    (tmp_path / "done.so").write_text("a whole file")
    payload = {"unfinished": str(tmp_path / "half.so"), "finished": str(tmp_path / "done.so")}
    outcome = pool.run("hostile:compiles_forever", payload, limits=SHORT)
    assert outcome.ending is Ending.TIMED_OUT
    assert outcome.phase == "half written"
    assert [path.name for path in tmp_path.iterdir()] == ["done.so"]


# --- many at once --------------------------------------------------------------------------------


def test_as_many_as_workers_run_at_once_and_the_rest_wait(pool):
    start = time.monotonic()
    futures = [pool.submit("hostile:sleeps", None, limits=Limits(seconds=0.5)) for _ in range(4)]
    assert {future.result().ending for future in futures} == {Ending.TIMED_OUT}
    assert time.monotonic() - start >= 1.0


def test_a_waiting_query_can_be_cancelled(pool):
    futures = [pool.submit("hostile:sleeps", None, limits=SHORT) for _ in range(3)]
    assert futures[2].cancel()
    assert futures[0].result().ending is Ending.TIMED_OUT
    assert run(pool, "returns").ending is Ending.RETURNED


def test_what_is_dropped_is_killed_or_never_begun_and_takes_nobody_along(pool):
    running = [pool.submit("hostile:sleeps", None, limits=LONG) for _ in range(2)]
    waiting = pool.submit("hostile:sleeps", None, limits=LONG)
    wait_for(lambda: len(processes_of(pool)) >= 3, 20.0)
    pool.drop(waiting)
    pool.drop(running[0])
    assert waiting.cancelled()
    assert running[0].result(20).ending is Ending.KILLED
    assert run(pool, "returns").ending is Ending.RETURNED
    assert not running[1].done()
    pool.drop(running[1])
    pool.drop(running[0])  # Once more, and too late: nothing.
    assert running[1].result(20).ending is Ending.KILLED
    assert_only_the_server_is_left(pool)


def storm(pool, count, *, seed, threads=4):
    """Ask in random order from several threads; return the wrong outcomes and the times of good queries, in order."""
    chooser = random.Random(seed)
    kinds = chooser.choices([kind for kind in EXPECTED if kind not in SLOW and kind != "returns"], k=count // 2)
    kinds += ["returns"] * (count - len(kinds))
    chooser.shuffle(kinds)
    wrong, times, lock = [], [], threading.Lock()
    queue = list(reversed(kinds))

    def ask():
        while True:
            with lock:
                if not queue:
                    return
                kind = queue.pop()
            outcome = run(pool, kind)
            with lock:
                if outcome.ending is not EXPECTED[kind]:
                    wrong.append((kind, outcome))
                if kind == "returns":
                    times.append(outcome.seconds)

    workers = [threading.Thread(target=ask) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong, times


def weather(pool, count, seed):
    wrong, times = storm(pool, count, seed=seed)
    assert wrong == []
    assert_only_the_server_is_left(pool)
    part = max(len(times) // 5, 5)
    assert statistics.median(times[-part:]) < 3 * statistics.median(times[:part]) + 0.05


def test_forty_in_random_order(pool):
    weather(pool, 40, seed=1)


@pytest.mark.slow
def test_five_hundred_in_random_order(pool):
    weather(pool, 500, seed=2)


# --- torch in a fork -----------------------------------------------------------------------------


def test_compilers_and_threads_work_in_a_fork():
    with Pool(workers=2, preload=PRELOAD) as pool:
        first, second = (pool.submit("hostile:computes", backend) for backend in ("inductor", "aot_eager"))
        for outcome in (first.result(), second.result(), pool.run("hostile:computes", "inductor")):
            assert outcome.ending is Ending.RETURNED, outcome
            assert outcome.value["close"]
            assert outcome.phase == "compile"
        # To look for a GPU without starting CUDA, torch loads a library that keeps a thread of its own.
        assert len(list(Path(f"/proc/{pool.server.process.pid}/task").iterdir())) == 1 + torch.cuda.is_available()
        assert list((pool.root / "cache").iterdir())
        assert not any(path.name in ("fxgraph", "aotautograd") for path in (pool.root / "cache").iterdir())
        assert list(pool.probes.rglob("*.so"))


# --- the server is lost --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SERVER_ENDS)
def test_a_query_that_ends_the_server_is_answered_and_the_others_go_on(pool, kind):
    before = pool.server.process.pid
    guilty = pool.submit(f"hostile:{kind}", None)
    bystander = pool.submit("hostile:returns", "beside")
    waiting = [pool.submit("hostile:returns", number) for number in range(3)]
    assert guilty.result().ending is SERVER_ENDS[kind]
    assert guilty.result().error.type == "ServerLost"
    assert [future.result().value["payload"] for future in waiting] == [0, 1, 2]
    assert bystander.result().value["payload"] == "beside"
    assert pool.server.process.pid != before
    assert_only_the_server_is_left(pool)


def test_a_server_killed_from_outside_is_replaced(pool):
    phases = []
    running = pool.submit("hostile:keeps_a_hydra", None, on_phase=phases.append)
    wait_for(lambda: phases == ["it lives"])
    pool.server.process.kill()
    assert running.result().ending is Ending.KILLED
    assert run(pool, "returns").ending is Ending.RETURNED
    assert_only_the_server_is_left(pool)


@pytest.mark.parametrize(
    ("python", "reason"),
    [("/no/such/python", "could not be started"), ("/bin/false", "exit code 1")],
    ids=["missing", "broken"],
)
def test_a_server_that_cannot_start_is_an_answer(python, reason):
    with Pool(python=python) as pool:
        outcome = pool.run("hostile:returns", None)
        assert outcome.ending is Ending.NOT_STARTED
        assert outcome.error.type == "ServerNotStarted"
        assert reason in outcome.error.message
        assert pool.run("hostile:returns", None).ending is Ending.NOT_STARTED
        assert not pool.wait_until_ready()
    assert not pool.root.exists()


def test_a_module_that_cannot_be_preloaded_is_named(monkeypatch):
    monkeypatch.setattr("torchparity.workers.pool.START_ATTEMPTS", 1)
    with Pool(preload=("no_such_module",), compilers=False) as pool:
        assert "no_such_module" in pool.run("hostile:returns", None).error.message
        assert "ended with exit code 1" in pool.run("hostile:returns", None).error.message


def test_a_module_of_the_compiler_that_does_not_work_keeps_no_query_from_its_answer(tmp_path, monkeypatch):
    """Another torch, another machine: a module of a compiler may fail at its import in any way at all."""
    (tmp_path / "warms.py").write_text("raise RuntimeError('no such device')")
    (tmp_path / "changes.py").write_text(
        "import torchparity.torchapi as api\napi.COMPILER_MODULES = ('warms.nothing',)"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    with Pool(preload=("changes",)) as pool:
        assert pool.wait_until_ready()
        assert pool.run("hostile:returns", None).ending is Ending.RETURNED
        assert "no such device" in (pool.root / LOG).read_text()


# --- the pool is closed --------------------------------------------------------------------------


def test_close_kills_what_runs_and_answers_what_waits():
    with Pool(workers=1, compilers=False) as pool:
        running = pool.submit("hostile:ignores_signals_and_loops", None)
        waiting = pool.submit("hostile:returns", None)
        wait_for(lambda: running.running() and processes.children(pool.server.process.pid))
        start = time.monotonic()
    assert time.monotonic() - start < 10
    assert running.result().ending is Ending.KILLED
    assert waiting.result().ending is Ending.NOT_STARTED
    assert processes_of(pool) == set()
    assert not pool.root.exists()
    pool.close()
    with pytest.raises(UsageError, match="closed"):
        pool.submit("hostile:returns", None)


PARENT = """
    import os, signal, sys, time
    from pathlib import Path
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits "ignored"
    {before}
    sys.path.insert(0, {here!r})
    from torchparity.workers.pool import Pool
    from torchparity.workers.outcome import Limits

    pool = Pool(workers=2, compilers=False)
    pool.wait_until_ready()
    Path({facts!r}).write_text(f"{{pool.mark}} {{pool.root}}")
    {body}
"""
BUSY = """
    futures = [pool.submit("hostile:leaves_a_daemon", None), pool.submit("hostile:sleeps", None)]
    Path({facts!r} + ".busy").write_text("")
    {end}
"""


def start_parent(tmp_path, *, body="", end="", before=""):
    facts = str(tmp_path / "facts")
    body = body or BUSY.format(facts=facts, end=end)
    code = textwrap.dedent(PARENT).format(
        here=str(HERE), facts=facts, body=textwrap.dedent(body).strip(), before=textwrap.dedent(before).strip()
    )
    (tmp_path / "parent.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return process, Path(facts)


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def assert_nothing_is_left(facts):
    mark, root = facts.read_text().split()
    wait_for(lambda: not processes.marked(MARK, mark) and not Path(root).exists(), seconds=20)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGKILL, "time.sleep(1000)"),
        (signal.SIGINT, "futures[1].result()"),
        (0, "raise SystemExit(0)"),
    ],
    ids=["killed", "interrupted", "left-open"],
)
def test_nothing_is_left_when_the_parent_ends(tmp_path, number, end):
    process, facts = start_parent(tmp_path, end=end)
    wait_for(lambda: Path(f"{facts}.busy").exists() or process.poll() is not None)
    time.sleep(0.3)
    if number:
        # As a terminal does: to the whole group.
        os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert_nothing_is_left(facts)
    assert (process.returncode == 0) == (number == 0)


def test_a_parent_without_standard_streams(tmp_path):
    body = f"""
    outcome = pool.run("hostile:returns", "alone")
    Path({str(tmp_path / "outcome")!r}).write_text(outcome.ending.value)
    pool.close()
    """
    process, facts = start_parent(tmp_path, body=body, before="os.closerange(0, 3)")
    process.communicate(timeout=120)
    assert (tmp_path / "outcome").read_text() == "returned"
    assert_nothing_is_left(facts)


def test_a_fork_of_the_parent_does_not_close_the_pool(tmp_path):
    body = f"""
    if os.fork() == 0:
        raise SystemExit(0)  # with its exit handlers
    os.wait()
    outcome = pool.run("hostile:returns", "after")
    Path({str(tmp_path / "outcome")!r}).write_text(outcome.ending.value)
    """
    process, facts = start_parent(tmp_path, body=body)
    process.communicate(timeout=120)
    assert (tmp_path / "outcome").read_text() == "returned"
    assert_nothing_is_left(facts)
