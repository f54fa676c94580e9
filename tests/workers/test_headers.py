"""What one query finds out of the compiler's precompiled headers, no other of its server asks again."""

import sys

import pytest

from torchparity import torchapi
from torchparity.workers.pool import Pool

JOBS = """
import torch
from torchparity import torchapi

def compiles(payload, announce):
    builder, commands = torchapi.lookup("torch._inductor.cpp_builder.CppBuilder"), []
    original = builder.build

    def build(self):
        commands.append(self.get_command_line())
        return original(self)

    builder.build = build
    x = torch.ones(3)
    right = torch.equal(torch.compile(lambda x: x * payload + 1)(x), x * payload + 1)
    return [right, len(commands), sum(" -E" in command for command in commands)]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="inductor's headers are g++'s here")
def test_only_the_first_query_has_the_compiler_read_the_header(tmp_path, monkeypatch):
    (tmp_path / "jobs_of_headers.py").write_text(JOBS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    with Pool(workers=1, compilers=True, preload=("jobs_of_headers",)) as pool:
        first, *others = (pool.run("jobs_of_headers:compiles", factor).value for factor in (3, 5, 7))
    right, commands, read = first
    assert right
    assert commands > read >= 1
    assert [other[::2] for other in others] == [[True, 0]] * 2
    assert all(other[1] >= 1 for other in others)


def test_an_answer_is_for_one_question_and_only_while_its_header_is_there(tmp_path, monkeypatch):
    module, _, name = torchapi.builds.FINDS_HEADER.rpartition(".")
    made, asked = tmp_path / "made.h", []
    made.write_text("")

    def find(*words, **options):
        asked.append((words, options))
        return str(made)

    monkeypatch.setattr(torchapi.lookup(module), name, find)
    torchapi.remember_headers(tmp_path / "answers")
    known = torchapi.lookup(torchapi.builds.FINDS_HEADER)
    for flags in ("-O1", "-O3", "-O1"):
        assert known("prefix.h", flags, aot_mode=False) == str(made)
    assert known("prefix.h", "-O1", aot_mode=True) == str(made)
    assert len(asked) == 3
    made.unlink()
    assert known("prefix.h", "-O1", aot_mode=False) == str(made)
    assert len(asked) == 4


def test_where_nothing_can_be_written_the_compiler_is_asked(tmp_path, monkeypatch):
    module, _, name = torchapi.builds.FINDS_HEADER.rpartition(".")
    monkeypatch.setattr(torchapi.lookup(module), name, lambda header, flags: header)
    (tmp_path / "file").write_text("")
    torchapi.remember_headers(tmp_path / "file" / "answers")
    assert torchapi.lookup(torchapi.builds.FINDS_HEADER)("prefix.h", "-O1") == "prefix.h"
