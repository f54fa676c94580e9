"""`torchparity since` from the command line: how releases are named, what it says and writes, how it ends."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time

import pytest
from tests.releases.stand_ins import ASSERTS, LACKS, WORKS, interpreter

from torchparity.cli.since import with_releases
from torchparity.cli.start import begin as main
from torchparity.errors import ResourceError
from torchparity.records import ReleaseEnvironment
from torchparity.releases import since as room


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command here, and return its exit code and what it printed."""
    (tmp_path / "repro.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHPARITY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest's own workers set it.

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["torchparity", "since", *words])
        try:
            with pytest.raises(SystemExit) as left:
                main()
        finally:
            logging.disable(logging.NOTSET)
        printed = capsys.readouterr()
        return left.value.code, printed.out, printed.err

    return run


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("since r.py --torch 2.9 2.10 2.11.0 -q", "since r.py --torch 2.9 --torch 2.10 --torch 2.11.0 -q"),
        ("since --torch 2.9 2.10 r.py", "since --torch 2.9 --torch 2.10 r.py"),
        ("since r.py --torch 2.9,2.10 2.11", "since r.py --torch 2.9,2.10 --torch 2.11"),
        ("since r.py --torch 2.9 --torch 2.10", "since r.py --torch 2.9 --torch 2.10"),
        ("since r.py --timeout 2.9 --torch", "since r.py --timeout 2.9 --torch"),
        ("check r.py --torch 2.9 2.10", "check r.py --torch 2.9 2.10"),
    ],
)
def test_several_releases_follow_one_option(words, meant):
    assert with_releases(words.split()) == meant.split()


def test_the_answer_goes_to_stdout_progress_to_stderr_and_all_to_a_file(call, tmp_path):
    pythons = [interpreter(tmp_path, *entry) for entry in (("2.9.1", WORKS), ("2.10.0", LACKS), ("2.11.0", ASSERTS))]
    words = [word for python in pythons for word in ("--python", python)]
    code, out, err = call("repro.py", *words, "--json", "since.json")
    assert code == 1
    first, head, *rows = out.splitlines()
    assert first.startswith(
        "FAILS  repro.py: broken between 2.9.1, which works, and 2.11.0, which fails; 2.10.0 gives no answer  (3 rel"
    )
    assert head.split() == ["asked", "torch", "answer", "seconds", "why"]
    assert [row.split()[1:3] for row in rows] == [["2.9.1", "works"], ["2.10.0", "unknown"], ["2.11.0", "fails"]]
    assert "lacks what the script needs: ImportError: no name" in rows[1]
    assert "AssertionError: 2 is not 3" in rows[2]
    assert f"3 of 3  {pythons[2]}: fails" in err
    data = json.loads((tmp_path / "since.json").read_text())
    assert (data["schema"], data["course"], data["exit_code"]) == (1, "broken", 1)
    assert data["answers"][2]["output"].endswith("AssertionError: 2 is not 3\n")


def test_releases_are_asked_for_and_one_that_is_not_there_is_told(call, monkeypatch, tmp_path):
    def environment(asked, **how):
        if asked == "2.8":
            raise ResourceError("pip finds no torch 2.8", hint="another Python")
        folder = tmp_path / asked / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(interpreter(tmp_path, asked, WORKS))
        return ReleaseEnvironment(asked=asked, torch=f"{asked}.0", python="3.11", folder=str(folder.parent))

    monkeypatch.setattr(room, "environment_for", environment)
    code, out, err = call("repro.py", "--torch", "2.10", "2.8", "2.9", "-q")
    assert (code, err) == (0, "")
    assert out.startswith("WORKS  repro.py: fails in no release that answered; 2.8 gives no answer")
    assert "not available: pip finds no torch 2.8" in out
    assert out.endswith("hint: another Python\n")
    assert call("repro.py", "--torch", "2.8", "-q")[0] == 125


def test_environments_are_listed(call, tmp_path):
    code, out, _ = call("--list")
    assert (code, out) == (0, f"0 environments in {tmp_path}/cache/releases, 0 B\n")
    folder = tmp_path / "cache" / "releases" / "2.9.1-cp311"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("")
    facts = {"asked": "2.9", "torch": "2.9.1", "python": "3.11", "folder": "/elsewhere", "size": 1_234_000_000}
    (folder / "environment.json").write_text(json.dumps(facts))
    code, out, _ = call("--list")
    assert out.splitlines()[0] == f"1 environment in {folder.parent}, 1.23 GB"
    assert f"{folder}/bin/python" in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "error: name a script"),
        (["nowhere.py"], "error: nowhere.py is no script"),
        (["."], "error: . is no script"),
        (["repro.py", "--torch", "two"], "error: 'two' is no release of torch"),
        (["repro.py", "--timeout", "0"], "error: --timeout 0 is no limit"),
        (["repro.py", "--json", "nowhere/x.json"], "error: there is no folder nowhere to write x.json to"),
    ],
)
def test_what_cannot_be_is_refused_in_two_lines(call, words, error):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == error
    assert second.startswith("hint: ")


def test_an_interrupt_loses_no_answer(tmp_path):
    (tmp_path / "repro.py").write_text("")
    pythons = [interpreter(tmp_path, "2.9.1", WORKS), interpreter(tmp_path, "2.10.0", "sleep 99")]
    words = [word for python in pythons for word in ("--python", python)]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchparity", "since", "repro.py", *words, "--json", "since.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (tmp_path / "since.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted; environments that were made are kept")
    assert json.loads((tmp_path / "since.json").read_text())["answers"][0]["torch"] == "2.9.1"


def test_help_says_what_the_exit_codes_mean_and_torch_is_not_imported():
    code = "import sys; sys.argv = ['torchparity', 'since', '--help']\nfrom torchparity.cli.start import begin\n"
    code += "try: begin()\nexcept SystemExit: print('torch' in sys.modules)\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines()[-1] == "False"
    for word in ("Exit code: 0 it works", "--torch", "--python", "--list", "--json", "--pip-option"):
        assert word in ended.stdout
