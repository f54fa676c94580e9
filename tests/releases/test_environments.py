"""Environments made for real, with venv and pip, from a folder of wheels that are stand-ins for torch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.releases.stand_ins import wheel

import torchparity
from torchparity.errors import ResourceError
from torchparity.records import ReleaseState
from torchparity.releases.environments import FACTS, cache_folder, environment_for, environments, known_series
from torchparity.releases.refusals import refusal
from torchparity.releases.scripts import Ended
from torchparity.report.releases import conclusion
from torchparity.workers.processes import children

MAKER = (
    "import sys; from pathlib import Path; from torchparity.releases.environments import environment_for;"
    "print(environment_for('2.9', options=sys.argv[2:], folder=Path(sys.argv[1])).folder)"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def options(place):
    wheels = place / "wheels"
    wheels.mkdir()
    for version in ("2.8.0", "2.9.0", "2.9.1"):
        wheel(wheels, "torch", version)
    wheel(wheels, "torch", "2.7.0", "raise OSError('libtorch.so: no such file')\n")
    wheel(wheels, "numpy", "2.0.0")
    return ("--no-index", f"--find-links={wheels}")


@pytest.fixture(scope="module", autouse=True)
def no_other_wheels():
    """Keep this machine's own settings of pip out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.delenv("PIP_FIND_LINKS", raising=False)
        yield


def making(place, options):
    command = [sys.executable, "-c", MAKER, str(place / "cache"), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_installing(process):
    """Tell whether the pip of a maker is at work."""
    for child in children(process.pid):
        try:
            words = (Path("/proc") / str(child) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"\0install\0" in words:
            return True
    return False


@pytest.fixture(scope="module")
def made(place, options):
    """Kill one maker halfway; then have two make the same environment at once."""
    killed = making(place, options)
    while not is_installing(killed):
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    halfway = [path.name for path in (place / "cache").iterdir() if path.is_dir()]
    seen = environments(place / "cache")
    makers = [making(place, options) for _ in range(2)]
    ended = [maker.communicate(timeout=120) for maker in makers]
    return halfway, seen, ended


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_a_maker_that_was_killed_leaves_nothing_that_passes_for_whole(made, place):
    halfway, seen, _ = made
    assert len(halfway) == 1
    assert halfway[0].endswith(".partial")
    assert seen == []
    assert halfway[0] not in [path.name for path in (place / "cache").iterdir()]


def test_two_at_once_make_one(made, place, options):
    _, _, ended = made
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folders = {out.strip() for out, _ in ended}
    assert len(folders) == 1, ended
    found = environments(place / "cache")
    assert [(entry.torch, entry.asked, entry.options, entry.folder) for entry in found] == [
        ("2.9.1", "2.9", options, folders.pop())
    ]
    assert Path(found[0].folder).name.startswith(f"2.9.1-{tag}-")
    assert found[0].size > 1000
    partial = [path.name for path in (place / "cache").iterdir() if path.name.endswith(".partial")]
    assert partial == []


def test_what_is_there_is_not_made_again(made, place, options):
    told = []
    began = time.monotonic()
    for asked in ("2.9", "2.9.1"):
        entry = environment_for(asked, options=options, folder=place / "cache", tell=told.append)
        assert entry.torch == "2.9.1"
    assert time.monotonic() - began < 1
    assert told == []


def test_a_script_runs_in_it_under_its_new_name(made, place, options, monkeypatch):
    """And a release that there is not stops no other: one environment is looked for in vain."""
    monkeypatch.setenv("TORCHPARITY_CACHE", str(place))
    shutil.copytree(place / "cache", cache_folder(), symlinks=True)
    script = place / "script.py"
    script.write_text("import numpy, sys, torch\nprint(sys.prefix)\nassert torch.__version__ != '2.9.1'\n")
    found = torchparity.since(script, torch=("2.9", "2.9.1", "9.9"), pip_options=options)
    assert conclusion(found) == "fails in every release that answered; 9.9 gives no answer"
    assert found.answers[0].error == "AssertionError"
    assert f"{place}/releases/2.9.1-" in found.answers[0].output
    missing = found.answers[-1]
    assert missing.state is ReleaseState.UNKNOWN
    assert missing.why.startswith("not available: pip finds no torch 9.9 for Python 3.")
    assert missing.why.endswith("; it finds 2.7.0 to 2.9.1")
    assert "--python PATH" in missing.hint


def test_a_torch_that_does_not_import_is_no_environment(place, options):
    with pytest.raises(ResourceError, match=r"torch 2\.7 was installed, and `import torch` fails: OSError: libtorch"):
        environment_for("2.7", options=options, folder=place / "broken")
    assert [path.name for path in (place / "broken").iterdir() if path.is_dir()] == []


def test_the_last_series_are_those_that_pip_knows(options):
    assert known_series(2, options=options) == ("2.8", "2.9")
    with pytest.raises(ResourceError, match="pip does not say which releases") as caught:
        known_series(2, options=("--no-index",))
    assert "--torch" in caught.value.hint


def test_what_is_damaged_is_none(made, place):
    copied = place / "copied"
    shutil.copytree(place / "cache", copied, symlinks=True)
    folder = Path(environments(copied)[0].folder)
    facts = json.loads((folder / FACTS).read_text())
    for text in ("", "{}", json.dumps({**facts, "torch": 3}), json.dumps({**facts, "surplus": 1}), "[]"):
        (folder / FACTS).write_text(text)
        assert environments(copied) == []
    (folder / FACTS).write_text(json.dumps(facts))
    assert len(environments(copied)) == 1
    (folder / "bin" / "python").unlink()
    assert environments(copied) == []


REFUSALS = {
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": "the disk is full",
    "WARNING: Retrying after NewConnectionError: Temporary failure in name resolution\n"
    "ERROR: Could not find a version that satisfies the requirement torch==2.9.* (from versions: none)\n"
    "ERROR: No matching distribution found for torch==2.9.*": "pip does not reach its index",
    "ERROR: Could not find a version that satisfies the requirement torch==2.9.* (from versions: none)\n"
    "ERROR: No matching distribution found for torch==2.9.*": "pip finds no torch 2.9 for Python",
    "The virtual environment was not created successfully because ensurepip is not available.": "cannot make",
    "ERROR: Something else": "could not be installed: Something else",
}


@pytest.mark.parametrize("output", REFUSALS, ids=REFUSALS.get)
def test_what_pip_says_in_two_lines(output):
    error = refusal("2.9", Ended(exit_code=1, output=output, seconds=1.0), seconds=60.0)
    assert REFUSALS[output] in error.message
    assert error.hint
    assert error.exit_code == 125


def test_a_cache_that_cannot_be_is_two_lines(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="no environment can be made in") as caught:
        environment_for("2.9", folder=tmp_path / "file" / "cache")
    assert "TORCHPARITY_CACHE" in caught.value.hint


def test_where_environments_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHPARITY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "torchparity" / "releases"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "torchparity" / "releases"
    monkeypatch.setenv("TORCHPARITY_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here" / "releases"
