"""What comes back from a pool, and the framing that carries it, without any process."""

from __future__ import annotations

import dataclasses
import json

import pytest

from torchparity.workers import child, processes
from torchparity.workers.frames import BODY_LIMIT, HEADER_LIMIT, MAGIC, PREFIX, FrameReader, pack
from torchparity.workers.outcome import OUTPUT_BYTES, Ending, Limits, Outcome
from torchparity.workers.query import Query


def test_records_are_frozen_and_keyword_only():
    outcome = Outcome(ending=Ending.RETURNED, value=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.value = 2
    with pytest.raises(TypeError):
        Outcome(Ending.RETURNED)
    with pytest.raises(TypeError):
        Limits(1.0)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_frames_survive_any_cutting(size):
    data = pack("phase", phase="ü") + pack("returned", b"x" * 5000) + pack("raised", b"{}", number=3)
    reader = FrameReader()
    frames = [frame for start in range(0, len(data), size) for frame in reader.feed(data[start : start + size])]
    assert [(frame.kind, len(frame.body)) for frame in frames] == [("phase", 0), ("returned", 5000), ("raised", 2)]
    assert frames[0].header["phase"] == "ü"
    assert frames[2].header["number"] == 3
    assert not reader.broken


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage garbage",
        PREFIX.pack(MAGIC, HEADER_LIMIT + 1, 0),
        PREFIX.pack(MAGIC, 2, BODY_LIMIT + 1),
        PREFIX.pack(MAGIC, 8, 0) + b"not json",
        PREFIX.pack(MAGIC, 2, 0) + b"[]",
        PREFIX.pack(MAGIC, 2, 0) + b"\xff\xff",
        PREFIX.pack(MAGIC, 100_000, 0) + b"[" * 100_000,
    ],
    ids=["text", "long header", "long body", "no json", "no dictionary", "no text", "deep"],
)
def test_garbage_ends_the_conversation(garbage):
    reader = FrameReader()
    assert [frame.kind for frame in reader.feed(pack("phase") + garbage + pack("returned"))] == ["phase"]
    assert reader.broken
    assert reader.feed(pack("returned")) == []


def query(tmp_path) -> Query:
    return Query(number=1, pid=0, folder=tmp_path, seconds=1.0, memory=None, victims=1 << 60)


def test_only_an_answer_before_an_orderly_end_counts(tmp_path):
    answered = query(tmp_path)
    answered.hear(pack("phase", phase="one") + pack("phase", phase="two") + pack("returned", b"1"))
    assert answered.ending(0) is Ending.RETURNED
    assert answered.ending(3 << 8) is Ending.EXITED
    assert answered.ending(11) is Ending.KILLED
    assert answered.phase == "two"
    answered.cut_short = Ending.TIMED_OUT
    assert answered.ending(0) is Ending.TIMED_OUT
    assert query(tmp_path).ending(0) is Ending.EXITED


def test_the_first_answer_counts(tmp_path):
    answered = query(tmp_path)
    answered.hear(pack("raised", b"{}") + pack("returned", b"1") + pack("timed_out"))
    assert answered.ending(0) is Ending.RAISED


def test_the_tail_of_the_output_is_kept(tmp_path):
    flooded = query(tmp_path)
    for _ in range(100):
        flooded.keep_tail(b"x" * 10_000)
    flooded.keep_tail(b"the end \xff")
    output = flooded.facts(0)["output"]
    assert output.endswith("the end \N{REPLACEMENT CHARACTER}")
    assert len(output) == OUTPUT_BYTES


def test_errors_become_facts():
    class Mute(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    assert child.facts(ValueError("text")).type == "ValueError"
    facts = child.facts(Mute())
    assert facts.type.endswith("Mute")
    assert facts.message == "<its text could not be made>"
    assert json.dumps(dataclasses.asdict(facts))


def test_a_folder_without_permissions_is_removed(tmp_path):
    folder = tmp_path / "outer"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("")
    (folder / "inner").chmod(0)
    processes.remove_folder(folder)
    assert not folder.exists()
    processes.remove_folder(folder)
