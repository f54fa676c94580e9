"""Sweeps with real workers and a real compiler's front end: killed, resumed, refused; nothing is lost or doubled."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import torchparity
from torchparity.fleet.baseline import Known, write_baseline
from torchparity.fleet.cells import Cell
from torchparity.fleet.executors import Answer
from torchparity.fleet.store import FILE, MIGRATIONS, Store, query
from torchparity.fleet.sweep import Sweep, repeated
from torchparity.records import Severity, Status, Verdict
from torchparity.report.exchange import github_text, lines_text, sarif_data, sweep_junit_text
from torchparity.report.sweep import command_of, markdown_text, sweep_text
from torchparity.repro.folders import alone_in

MODELS = """
import os
import torch
from torch._dynamo import register_backend


@register_backend(name="off_by_one")
def off_by_one(graph_module, inputs, **options):
    return lambda *arguments: tuple(value + 1 for value in graph_module(*arguments))


def small(width=4):
    torch.manual_seed(0)
    return torch.nn.Linear(width, 4), (torch.randn(2, width),)


def dies():
    return lambda x: x + (os.abort() if torch.compiler.is_compiling() else 1), (torch.ones(2),)


def broken():
    raise RuntimeError("no such model")
"""
SUITE = """
[[target]]
of = ["models.py:small", "models.py:broken", "models.py:dies"]
backend = ["eager", "off_by_one"]
skip = [{ of = "models.py:dies", backend = "off_by_one" }]

[[target]]
of = "models.py:small"
parameters = { width = [2, 3] }
labels = ["narrow"]
backend = "aot_eager"
dtype = ["float32", "float64"]
batch = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "suite.toml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "torchparity", *map(str, words)], check=False, capture_output=True, text=True, **more
    )


def test_every_cell_has_its_verdict_and_everything_is_told(folder):
    done = command("sweep", "suite.toml", "--out", "out", "--sarif", "s.sarif", "--junit", "j.xml", "--json", "c.jsonl",
                   "--summary", "s.md", "--format", "github")  # fmt: skip
    assert done.returncode == 1, done.stderr
    rows = dict(line.split("\t") for line in counted(folder).splitlines())
    assert rows == {"same": "5", "differs": "2", "unknown": "2"}
    told = {
        (row["title"], row["options"]): row for row in map(json.loads, (folder / "c.jsonl").read_text().splitlines())
    }
    wrong = told["models.py:small", "backend=off_by_one"]
    assert (wrong["status"], wrong["kind"], wrong["file"], wrong["line"]) == ("differs", "value", "models.py", 12)
    assert told["models.py:dies", "backend=eager"]["kind"] == "crashes"
    assert "no such model" in told["models.py:broken", "backend=eager"]["reason"]
    assert told["models.py:small(width=2)", "backend=aot_eager batch=3 dtype=float64"]["status"] == "same"
    assert "::error file=models.py,line=12" in done.stdout
    suite = ET.parse(folder / "j.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9", "failures": "2", "errors": "2", "skipped": "0",
    }  # fmt: skip
    results = json.loads((folder / "s.sarif").read_text())["runs"][0]["results"]
    assert len({result["partialFingerprints"]["torchparity/v1"] for result in results}) == 4
    assert "not in the baseline" in (folder / "s.md").read_text()
    assert "models.py:small(width=3)" in (folder / "out" / "index.html").read_text()
    again(folder)


def counted(folder, name="out"):
    done = command("query", name, "select status, count(*) from cells group by status", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def again(folder):
    """What was accepted does not fail again; a sweep that is done is not run again; what is gone is told."""
    assert command("baseline", "out").returncode == 1
    assert command("baseline", "out", "--update", "--reason", "we know").returncode == 0
    assert (folder / "out" / "baseline.toml").read_text().count("we know") == 4
    resumed = command("sweep", "--resume", "out")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "Nothing new" in resumed.stdout
    with Store(folder / "out").writing() as connection:  # As if a later sweep had found it cured.
        connection.execute("update all_verdicts set status = 'same', kind = '' where kind = 'crashes'")
    gone = command("baseline", "out")
    assert gone.returncode == 0
    assert "gone     models.py:dies" in gone.stdout
    assert command("report", "out").returncode == 0
    assert "agrees now" in (folder / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sweep", "suite.toml"], "needs a folder"),
        (["sweep", "nothing.toml", "--out", "out"], "there is no suite"),
        (["sweep", "--out", "out"], "one suite"),
        (["sweep", "suite.toml", "--suite", "timm", "--out", "out"], "one suite"),
        (["sweep", "--suite", "tim", "--out", "out"], "did you mean 'timm'"),
        (["sweep", "--resume", "out"], "holds no sweep"),
        (["sweep", "suite.toml", "--out", "out", "--python", "/nowhere/python"], "is no interpreter"),
        (["sweep", "suite.toml", "--out", "out", "--python", sys.executable], "twins are two"),
        (["sweep", "suite.toml", "--out", "out", "--format", "gitlab"], "no format"),
        (["sweep", "suite.toml", "--out", "out", "--repeat", "0"], "repeat"),
        (["query", "out", "select 1"], "holds no sweep"),
        (["baseline", "out"], "holds no sweep"),
        (["baseline", "out", "--until", "soon"], "is no day"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(folder, words, told):
    done = command(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "hint:" in done.stderr


def test_a_list_runs_nothing(folder):
    done = command("sweep", "suite.toml", "--list")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 9
    assert not (folder / "out").exists()


# --- the store -----------------------------------------------------------------------------------


def verdict(status=Status.SAME, seconds=0.0):
    return Verdict(
        status=status, reasons=("as it is",), runs=(), recipe={}, environment={}, subject="x", seconds=seconds
    )


def begun(folder, count=4, **facts):
    store = Store(folder, create=True)
    cells = [Cell(target=f"m.py:{number}") for number in range(count)]
    store.begin("suite", [""], cells, {"base": str(folder), **facts}, 1.0)
    return store


def test_a_cell_has_one_verdict(tmp_path):
    store = begun(tmp_path)
    first = store.waiting()[0]
    assert store.add(first.id, verdict(), 2.0)
    assert not store.add(first.id, verdict(Status.DIFFERS), 3.0)
    assert store.verdict(first.id).status is Status.SAME
    assert len(store.waiting()) == 3
    assert store.again(["same"]) == 1
    assert len(store.waiting()) == 4


def test_a_query_reads_and_never_writes(tmp_path):
    begun(tmp_path).close()
    assert query(tmp_path, "select count(*) as n from cells") == (["n"], [(4,)])
    for question in ("delete from all_cells", "update all_cells set key = 1", "drop table all_cells", "nonsense"):
        with pytest.raises(torchparity.UsageError):
            query(tmp_path, question)
    assert query(tmp_path, "select count(*) from cells")[1] == [(4,)]


def test_the_views_show_the_last_sweep(tmp_path):
    store = begun(tmp_path)
    for cell in store.waiting():
        store.add(cell.id, verdict(Status.DIFFERS), 2.0)
    store.end(3.0)
    store.begin("suite", [""], [Cell(target="m.py:0")], {"base": str(tmp_path)}, 4.0)
    assert len(store.cells()) == 1
    assert query(tmp_path, "select count(*) from all_cells")[1] == [(5,)]
    from torchparity.fleet.summary import summary_of

    assert summary_of(store, []).cells[0].history == ("differs",)


def test_a_store_of_a_newer_schema_and_one_that_is_none_are_refused(tmp_path):
    begun(tmp_path / "new").close()
    with sqlite3.connect(tmp_path / "new" / FILE) as connection:
        connection.execute(f"pragma user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(torchparity.UsageError, match="newer torchparity"):
        Store(tmp_path / "new")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / FILE).write_text("this is no database, however long it is" * 100)
    with pytest.raises(torchparity.UsageError, match="cannot be used"):
        Store(tmp_path / "none")


def test_two_sweeps_do_not_share_a_folder(folder):
    with alone_in(folder / "out", "sweep"):
        done = command("sweep", "suite.toml", "--out", "out")
    assert done.returncode == 2
    assert "another sweep is running" in done.stderr
    begun(folder / "half").close()
    done = command("sweep", "suite.toml", "--out", "half")
    assert done.returncode == 2
    assert "--resume half" in done.stderr


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    store = begun(tmp_path)
    pages = store.rows("pragma page_count")[0][0]
    store.rows(f"pragma max_page_count = {pages}")
    with pytest.raises(torchparity.ResourceError, match="cannot be written"):
        for cell in store.cells():
            store.add(cell.id, Verdict(
                status=Status.UNKNOWN, reasons=("x" * 100_000,), runs=(), recipe={}, environment={}, subject="x",
            ), 2.0)  # fmt: skip
    assert store.rows("pragma integrity_check")[0][0] == "ok"


KILLED = """
import sys, time
from pathlib import Path
from concurrent.futures import Future
from torchparity.fleet.executors import Answer
from torchparity.fleet.store import Store
from torchparity.fleet.sweep import Sweep
from torchparity.repro.folders import alone_in
from torchparity.records import Status, Verdict

class Executor:
    width = 3
    def submit(self, cell):
        done = Future()
        time.sleep(0.001)
        print(cell.target, flush=True)
        done.set_result(Answer(verdict=Verdict(status=Status.SAME, reasons=(cell.target,), runs=(), recipe={},
                        environment={}, subject=cell.target)))
        return done

folder = Path(sys.argv[1])
with alone_in(folder, "sweep"):
    store = Store(folder)
    Sweep(store, Executor(), 0).run()
    store.end(time.time())
"""


def killed_and_resumed(folder, kills, cells):
    begun(folder, cells).close()
    chance = random.Random(kills)
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(1.0, 4.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        (sound,) = query(folder, "pragma integrity_check")[1]
        assert sound == ("ok",)
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=True, stdout=subprocess.DEVNULL)
    assert query(folder, "select count(*), count(distinct key), count(status) from cells")[1] == [(cells,) * 3]
    assert query(folder, "select count(*) from all_verdicts")[1] == [(cells,)]
    wrong = "select count(*) from cells where reason != target"
    assert query(folder, wrong)[1] == [(0,)]


def test_a_kill_loses_nothing_and_doubles_nothing(tmp_path):
    killed_and_resumed(tmp_path, 3, 2000)


@pytest.mark.slow
def test_fifty_kills_lose_nothing_and_double_nothing(tmp_path):
    killed_and_resumed(tmp_path, 50, 20_000)


@pytest.mark.slow
def test_a_real_sweep_that_is_killed_goes_on(folder):
    words = [sys.executable, "-m", "torchparity", "sweep"]
    process = subprocess.Popen([*words, "suite.toml", "--out", "out"], stderr=subprocess.PIPE, text=True)
    seen = process.stderr.readline()
    assert "[1/9]" in seen
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 1 <= sum(int(line.split("\t")[1]) for line in counted(folder).splitlines() if line.split("\t")[0]) < 9
    done = subprocess.run([*words, "--resume", "out"], check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert seen.split("  ", 1)[1] not in done.stderr, "it was judged before, and is judged again"
    assert query(folder / "out", "select count(*), count(status) from cells")[1] == [(9, 9)]


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_known(folder):
    words = [sys.executable, "-m", "torchparity", "sweep", "suite.toml", "--out", "out"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert query(folder / "out", "select count(*) > 0 from verdicts")[1] == [(1,)]


# --- the order -----------------------------------------------------------------------------------


class Recording:
    """An executor that answers at once, and remembers."""

    def __init__(self, width=1):
        self.width, self.seen = width, []

    def submit(self, cell):
        from concurrent.futures import Future

        self.seen.append(cell.target)
        done = Future()
        done.set_result(Answer(verdict=verdict(seconds=float(cell.target[-1])), peak=1 << 20))
        return done


def test_the_longest_go_first_once_they_were_seen(tmp_path):
    store = begun(tmp_path)
    Sweep(store, Recording(), 0).run()
    store.end(2.0)
    store.begin("suite", [""], [Cell(target=f"m.py:{number}") for number in range(4)], {"base": ""}, 3.0)
    executor = Recording()
    Sweep(store, executor, 0).run()
    assert executor.seen == ["m.py:3", "m.py:2", "m.py:1", "m.py:0"]


def test_repetitions_that_differ_are_flaky(tmp_path):
    from torchparity.fleet.summary import summary_of

    store = Store(tmp_path, create=True)
    store.begin("suite", [""], repeated([Cell(target="m.py:a"), Cell(target="m.py:b")], 2), {"base": ""}, 1.0)
    for place, cell in enumerate(store.cells()):
        store.add(cell.id, verdict(Status.SAME if place else Status.UNKNOWN), 2.0)
    assert {cell.title for cell in summary_of(store, []).flaky} == {"m.py:a"}


def test_pages_and_formats_hold_whatever_a_program_says(tmp_path):
    from torchparity.fleet.summary import summary_of

    store = Store(tmp_path, create=True)
    evil = "m.py:<script>alert(1)</script>|`x`\n::error::%0A"
    store.begin(evil, [""], [Cell(target=evil, labels=(evil,))], {"base": ""}, 1.0)
    store.add(1, Verdict(status=Status.DIFFERS, reasons=(evil,), runs=(), recipe={}, environment={}, subject=evil), 2.0)
    summary = summary_of(store, [])
    assert "<script>alert" not in sweep_text(summary)
    assert "<script>" not in markdown_text(summary)
    assert github_text(summary).count("\n") == 1
    ET.fromstring(sweep_junit_text(summary).partition("\n")[2])
    json.loads(json.dumps(sarif_data(summary)))
    assert len(lines_text(summary).splitlines()) == 1


@pytest.mark.slow
def test_a_command_checks_one_cell_again(folder):
    (cell,) = summary_of_one(folder).cells
    assert command_of(cell) == "torchparity check models.py:small --backend eager --train"
    done = command(*command_of(cell).split()[1:])
    assert done.returncode == 0, done.stderr


def summary_of_one(folder):
    (folder / "one.toml").write_text('target = { of = "models.py:small", backend = "eager", train = true }\n')
    return torchparity.sweep("one.toml", out="one", workers=1)


def test_twins_tell_what_changed(tmp_path):
    from torchparity.fleet.summary import summary_of

    store = Store(tmp_path, create=True)
    cells = [Cell(target=f"m.py:{name}") for name in ("fine", "broken", "cured")]
    store.begin("suite", ["before", "after"], cells, {"base": ""}, 1.0)
    after = {"fine": Status.SAME, "broken": Status.DIFFERS, "cured": Status.SAME}
    before = {"fine": Status.SAME, "broken": Status.SAME, "cured": Status.DIFFERS}
    for cell in store.cells():
        name = cell.cell.target.rpartition(":")[2]
        store.add(cell.id, verdict((after if cell.environment else before)[name], 1.0 + cell.environment), 2.0)
    summary = summary_of(store, [])
    assert {change.title: (change.word, change.slower) for change in summary.changes} == {
        "m.py:fine": ("same", 2.0), "m.py:broken": ("new failure", 2.0), "m.py:cured": ("cured", 2.0),
    }  # fmt: skip
    assert [cell.title for cell in summary.failing] == ["m.py:broken"], "only the last environment is gated on"
    assert Severity.NONE.value == summary.cells[0].severity


def test_a_suite_is_tests_and_reads_the_baseline(folder):
    (folder / "suite.toml").write_text(
        'target = { of = "models.py:small", backend = ["eager", "off_by_one"], train = [false, true] }\n'
        '[[skip]]\nbackend = "eager"\ntrain = true\n'
    )
    accepted = Known(target="models.py:small", options="backend=off_by_one train=false", leaf="output", kind="value")
    write_baseline(folder / "baseline.toml", [accepted])
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "suite.toml"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "1 failed, 1 passed, 1 xfailed" in done.stdout, done.stdout
    assert "DIFFERS" in done.stdout
    assert "models.py:small[backend=off_by_one train]" in done.stdout


@pytest.mark.slow
def test_the_worst_that_are_new_are_diagnosed(folder):
    (folder / "one.toml").write_text('target = { of = "models.py:small", backend = ["eager", "off_by_one"] }\n')
    summary = torchparity.sweep("one.toml", out="out", workers=1, diagnose_new=1)
    (wrong,) = summary.failing
    assert wrong.finding["stage"] == "backend"
    assert (folder / "out" / wrong.finding["folder"] / "index.html").is_file()
    assert query(folder / "out", "select folder from findings")[1] == [(wrong.finding["folder"],)]
    assert Path.cwd() == folder


def test_a_new_failure_is_dated(tmp_path, monkeypatch):
    from torchparity.fleet.summary import summary_of
    from torchparity.records import ReleaseAnswer, ReleaseState
    from torchparity.verbs import dating
    from torchparity.verbs.sweep import new_failures

    store = Store(tmp_path, create=True)
    store.begin("suite", ["before", "after"], [Cell(target="m.py:fine"), Cell(target="m.py:broken")], {"base": ""}, 1.0)
    for cell in store.cells():
        fails = cell.environment == 1 and cell.cell.target == "m.py:broken"
        store.add(cell.id, verdict(Status.DIFFERS if fails else Status.SAME, 1.0), 2.0)

    def in_release(cells, release, **how):
        state = ReleaseState.FAILS if release == "2.13" else ReleaseState.WORKS
        return [ReleaseAnswer(asked=release, torch=f"{release}.0", state=state, error=cell.kind) for cell in cells]

    monkeypatch.setattr(dating, "in_release", in_release)
    wanted = new_failures(summary_of(store, []))
    assert len(wanted) == 1
    dating.date_failures(store, wanted, ["2.12", "2.13"], base=tmp_path, workers=1)
    dated = {change.title: change.since for change in summary_of(store, []).changes}
    assert dated == {"m.py:fine": "", "m.py:broken": "broken since 2.13 (2.12 works)"}
