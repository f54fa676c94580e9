"""What a failing check leaves on disk: whole or not at all, in place of what was there."""

from __future__ import annotations

import json

import pytest

from torchparity import Status, Verdict
from torchparity.repro.folders import replacing
from torchparity.verbs import evidence
from torchparity.verbs.evidence import NoEvidence, leave_bundle, leave_verdict

VERDICT = Verdict(status=Status.DIFFERS, reasons=("it differs",), subject="make", recipe={"backend": "eager"})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_emptied_first(tmp_path):
    folder = tmp_path / "all" / "test"
    leave_verdict(VERDICT, folder)
    (folder / "bundle").mkdir()
    (folder / "bundle" / "case.json").write_text("of the run before")
    leave_verdict(VERDICT, folder)
    assert names(folder) == ["table.txt", "verdict.json"]
    assert json.loads((folder / "verdict.json").read_text())["status"] == "differs"
    assert names(folder.parent) == ["test"]


def test_it_is_whole_or_not_there(tmp_path, monkeypatch):
    def full(verdict):
        raise OSError(28, "No space left on device")

    leave_verdict(VERDICT, tmp_path / "test")
    monkeypatch.setattr(evidence, "plain_text", full)
    with pytest.raises(NoEvidence, match="No space left"):
        leave_verdict(VERDICT, tmp_path / "test")
    assert names(tmp_path) == []


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(NoEvidence):
        leave_verdict(VERDICT, tmp_path / "artifacts" / "test")


def test_another_process_may_have_been_faster(tmp_path):
    with replacing(tmp_path / "folder", kept_unless=lambda folder: True) as partial:
        (partial / "ours").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "theirs").touch()
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["ours"]


def test_whatever_stops_the_search_the_verdict_stands(tmp_path, monkeypatch):
    def broken(*args, **options):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(evidence, "find", broken)
    with pytest.raises(NoEvidence, match="ZeroDivisionError: a defect"):
        leave_bundle(tmp_path, len, (), None, {"backend": "eager"}, pool=None)
    assert names(tmp_path) == []
