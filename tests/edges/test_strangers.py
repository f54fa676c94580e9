"""Bundles, runs and logs from strangers: no traceback, no code, little memory, little time."""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from tests.edges.mutants import mutated_bundle, mutated_lines, mutated_run

import torchparity
from torchparity.errors import ParityError
from torchparity.minifier.log import resumed
from torchparity.records.strangers import harmless
from torchparity.report.page import moved, read_run, write_page
from torchparity.repro import seal
from torchparity.repro.bundle import read_bundle
from torchparity.repro.looking import FACTS, check_of, look_at
from warm import command_line

SECONDS = 5.0
MEBI = 1 << 20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundle")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    torchparity.capture(model, (torch.randn(2, 4),), backend="aot_eager", out=place)
    return place / "001_dynamo"


@pytest.fixture(scope="module")
def run_facts(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("runs") / "run"
    plain = torchparity.faults.plant("scale", where="forward", site=0, size=0.1)
    torchparity.diagnose(lambda x: torch.sin(x) + 1, (torch.randn(5),), backend=plain, out=place)
    return (place / "run.json").read_text()


LOG = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"event": "start", "case": "abc", "check": None, "seconds": 300.0, "memory": None, "free": 2},
        {"event": "asked", "query": 1, "key": "k1", "stage": "start", "operations": 5},
        {
            "event": "answered",
            "key": "k1",
            "answer": {"signatures": [{"kind": "value"}], "same": False, "seconds": 0.5},
        },
        {"event": "adopted", "key": "k1"},
        {"event": "fatal", "key": "k2"},
        {"event": "ended", "complete": True, "reproduced": [3, 3]},
    )
)


def read_all(folder: Path) -> int:
    """Look at a bundle and read it; return how often it was refused."""
    refused = 0
    for read in (look_at, read_bundle):
        began = time.monotonic()
        try:
            read(folder)
        except ParityError as error:
            refused += 1
            assert error.hint
        assert time.monotonic() - began < SECONDS
    return refused


def bundles(bundle: Path, folder: Path, seeds: range) -> int:
    refused = 0
    for seed in seeds:
        place = folder / "mutant"
        shutil.copytree(bundle, place)
        mutated_bundle(place, random.Random(seed))
        refused += read_all(place)
        shutil.rmtree(place)
    return refused


def others(run_facts: str, folder: Path, seeds: range) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        (folder / "run.json").write_bytes(mutated_run(run_facts, dice))
        (folder / "log.jsonl").write_bytes(mutated_lines(LOG, dice))
        began = time.monotonic()
        try:
            write_page(moved(read_run(folder), folder), folder)
        except ParityError as error:
            assert error.hint
        try:
            resumed(folder)
        except ParityError as error:
            assert error.hint
        assert time.monotonic() - began < SECONDS


def within_memory(before: int) -> None:
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) / 1024 < 500


@pytest.mark.parametrize("part", range(4))
def test_no_mutant_of_a_bundle_gets_further_than_two_lines(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    refused = bundles(bundle, tmp_path, range(300 * part, 300 * (part + 1)))

    assert refused > 300  # Nearly all of them, by both readers.
    assert not (tmp_path / "pwned").exists()
    within_memory(before)


@pytest.mark.parametrize("part", range(2))
def test_no_mutant_of_a_run_or_a_log_gets_further(run_facts: str, tmp_path: Path, part: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    others(run_facts, tmp_path, range(400 * part, 400 * (part + 1)))

    within_memory(before)


@pytest.mark.slow
def test_ten_thousand(bundle: Path, run_facts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundles(bundle, tmp_path, range(10_000, 16_000))
    others(run_facts, tmp_path, range(10_000, 14_000))

    assert not (tmp_path / "pwned").exists()


def test_a_file_that_is_too_large_is_not_read(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "large"
    shutil.copytree(bundle, place)
    with (place / FACTS).open("r+b") as file:
        file.truncate(2 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(ParityError, match="at most 64 are read"):
        look_at(place)
    within_memory(before)


def test_what_a_bundle_says_does_not_steer_the_terminal(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "steering"
    shutil.copytree(bundle, place)
    facts = json.loads((place / FACTS).read_text())
    facts["origin"]["lines"] = ["\x1b]0;owned\x07 file.py:1"]
    facts["environment"]["torch"] = "\x1b[2J"
    facts["check"] = check_of(facts)
    (place / FACTS).write_text(json.dumps(facts))

    shown = command_line(tmp_path, "show", place)

    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert "file.py:1" in shown.stdout
    assert harmless("a\x1b[31m\nb\tc\u202e") == "a\ufffd[31m\nb\tc\ufffd"


@pytest.mark.parametrize("verb", ["run", "locate", "blame", "minify", "diagnose"])
def test_a_bundle_from_elsewhere_is_shown_before_it_is_run(bundle: Path, tmp_path: Path, verb: str) -> None:
    place = tmp_path / "foreign"
    shutil.copytree(bundle, place)
    facts = json.loads((place / FACTS).read_text())
    facts["seal"] = "0" * 64
    (place / FACTS).write_text(json.dumps(facts))

    ended = command_line(tmp_path, verb, place)

    assert ended.returncode == 2
    assert "was not made by you on this machine; it would run its graph" in ended.stderr
    assert "add --trust" in ended.stderr


def test_with_trust_it_runs(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "foreign"
    shutil.copytree(bundle, place)
    facts = json.loads((place / FACTS).read_text())
    facts["seal"] = ""
    (place / FACTS).write_text(json.dumps(facts))

    ended = command_line(tmp_path, "run", place, "--trust", "-q")

    assert ended.returncode == 0, ended.stderr


def test_what_this_user_made_here_is_known(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_at(bundle).ours
    assert read_bundle(bundle).trusted
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert not look_at(bundle).ours  # Another user's key, or none.
    assert seal.seal_of("abc") == seal.seal_of("abc")
    assert oct((tmp_path / "torchparity" / "key").stat().st_mode)[-3:] == "600"
    for forged in ("", "\ud800", "ä", 5, None, seal.seal_of("abd")):
        assert not seal.is_ours("abc", forged)
    assert seal.is_ours("abc", seal.seal_of("abc"))


def test_where_no_key_can_be_kept_nothing_is_ours(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")

    assert seal.seal_of("abc") == ""
    assert not look_at(bundle).ours


def test_show_tells_all_that_would_run(bundle: Path) -> None:
    shown = command_line(bundle.parent, "show", bundle).stdout

    assert "class Graph(torch.nn.Module)" in shown
    assert "backend  'aot_eager'" in shown
    assert "made by  you, on this machine" in shown
