"""Files that a command writes: links, devices, modes, folders, two processes at once."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchparity.errors import UsageError
from torchparity.minifier.log import Log
from torchparity.report.machine import write_whole
from torchparity.repro.folders import remove_leftovers
from warm import command_line


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)

    write_whole("new", link, option="--json")

    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_link_to_nothing_yet_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")

    write_whole("new", link, option="--json")

    assert link.is_symlink()
    assert (tmp_path / "target.json").read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with pytest.raises(UsageError, match="cannot write"):
        write_whole("new", tmp_path / "a", option="--json")


def test_a_device_is_written_into_and_stays_a_device() -> None:
    with pytest.raises(UsageError, match="No space left"):
        write_whole("new", Path("/dev/full"), option="--json")
    write_whole("new", Path("/dev/null"), option="--json")

    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    place.write_text("old")
    place.chmod(0o640)

    write_whole("new", place, option="--json")

    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    assert place.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write_whole("new", pipe, option="--json")
        assert reader.communicate(timeout=30)[0] == "new"
    assert pipe.is_fifo()


def test_a_relative_path_means_the_folder_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "model.py").write_text(
        "import os, torch\n\n\ndef make():\n    os.chdir('elsewhere')\n"
        "    return torch.nn.Linear(2, 2), (torch.randn(1, 2),)\n"
    )
    words = ["check", "model.py:make", "--backend", "aot_eager", "-q", "--json", "out.json", "--junit", "out.xml"]
    words += ["--summary", "out.md"]
    ended = command_line(tmp_path, *words)

    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "out.json").read_text())["status"] == "same"
    assert (tmp_path / "out.xml").is_file()
    assert (tmp_path / "out.md").is_file()
    assert not any((tmp_path / "elsewhere").iterdir())


def test_two_processes_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    Log(tmp_path / "log.jsonl").write("start", check=None, seconds=1.0, memory=None, free=1)
    holding = Log(tmp_path / "log.jsonl")
    holding.hold()
    program = (
        "import pathlib, sys\n"
        "from torchparity.errors import UsageError\n"
        "from torchparity.minifier.log import Log\n"
        "try: Log(pathlib.Path(sys.argv[1])).hold()\n"
        "except UsageError as error: print(error.message)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "log.jsonl")]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    del holding
    second = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "another process works in" in first
    assert second == ""


def test_only_what_a_kill_left_of_a_bundle_is_removed(tmp_path: Path) -> None:
    for name in (".git", ".case.backup", ".start.mine", ".case.abcdefgh", ".passing.12345678"):
        (tmp_path / name).mkdir()
    (tmp_path / ".case.abcdefgh" / "notes.txt").write_text("the user's")
    remove_leftovers(tmp_path, ("start", "case", "passing"))

    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".case.abcdefgh",
        ".case.backup",
        ".git",
        ".start.mine",
    ]
