from __future__ import annotations

import errno
import inspect
import json
import os
import resource
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.repro.graphs import case_of, doubling, graph_of, small_case

from torchparity.errors import BundleError, CaseError, ResourceError
from torchparity.judge.cases import judge_bundle
from torchparity.judge.script import write_bundle
from torchparity.repro import bundle, tensors
from torchparity.repro.bundle import FACTS, SCHEMA, SCRIPT, TENSORS, read_bundle
from torchparity.repro.looking import IDENTITY, check_of, digest_of
from torchparity.repro.opening import open_case as load_case
from torchparity.repro.values import Dense
from torchparity.request import Request

FILES = [FACTS, SCRIPT, TENSORS]
MARK = "import pathlib\npathlib.Path({path!r}).touch()\n"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def edit(folder, **changes):
    """Change facts and put digest and check right again, as someone with bad intentions would."""
    facts = json.loads((folder / FACTS).read_text())
    facts.update(changes)
    facts["digest"] = changes.get("digest") or digest_of({name: facts[name] for name in IDENTITY})
    facts["check"] = check_of(facts)
    (folder / FACTS).write_text(json.dumps(facts))


@pytest.fixture
def folder(tmp_path):
    return write_bundle(replace(small_case(), files={"user_part.py": "NUMBER = 1\n"}), tmp_path / "cases" / "case")


# --- writing -------------------------------------------------------------------------------------


def test_a_bundle_is_three_files_and_the_users(folder):
    assert sorted(content(folder)) == sorted([*FILES, "user_part.py"])
    facts = json.loads((folder / FACTS).read_text())
    assert facts["schema"] == SCHEMA
    assert facts["compute_nodes"] == 1
    assert [name for name, _ in facts["inputs"]] == ["x"]


def test_the_same_case_gives_the_same_bytes(tmp_path):
    folders = [write_bundle(small_case(), tmp_path / name) for name in ("a", "b")]
    assert content(folders[0]) == content(folders[1])
    again = write_bundle(read_bundle(folders[0]), tmp_path / "c")
    assert content(again) == content(folders[0])


def test_reading_gives_the_case_back(folder):
    case = read_bundle(folder)
    expected = replace(small_case(), files={"user_part.py": "NUMBER = 1\n"})
    assert case.digest == expected.digest
    assert (case.graph, case.inputs, case.request) == (expected.graph, expected.inputs, expected.request)
    assert (case.name, case.origin, dict(case.files)) == (expected.name, expected.origin, expected.files)


def test_a_bundle_of_the_same_name_makes_way(folder):
    other = small_case(request=Request(backend="eager", backward=True))
    write_bundle(other, folder)
    assert read_bundle(folder).digest == other.digest
    assert sorted(content(folder)) == sorted(FILES)
    assert listed(folder.parent) == [folder.name]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_not_a_bundle_does_not_make_way(tmp_path, kind):
    target = tmp_path / "thesis"
    precious = target / "chapter.tex" if kind == "folder" else target
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("years of work")
    with pytest.raises(BundleError, match="is not a bundle, and is not empty"):
        write_bundle(small_case(), target)
    assert precious.read_text() == "years of work"
    assert listed(tmp_path) == ["thesis"]


@pytest.mark.parametrize("name", ["../escape", "", "a/b", ".hidden", "a b", "\n"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(CaseError, match="a case cannot be called"):
        write_bundle(small_case(name=name), tmp_path / "case")
    assert listed(tmp_path) == []


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_write_that_fails_midway_leaves_nothing(tmp_path, monkeypatch, call):
    calls = []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle.os, "fsync", failing)
    with pytest.raises(OSError, match="No space left"):
        write_bundle(replace(small_case(), files={"user_part.py": ""}), tmp_path / "case")
    assert listed(tmp_path) == []


def test_an_old_bundle_stays_when_the_new_one_cannot_take_its_place(folder, monkeypatch):
    before = content(folder)
    rename = Path.rename

    def failing(self, target):
        if Path(target) == folder and self.name != "old":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write_bundle(small_case(request=Request(backend="eager", backward=True)), folder)
    assert content(folder) == before
    assert listed(folder.parent) == [folder.name]


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(file, storages):
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "write_storages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(small_case(), tmp_path / "case")
    assert listed(tmp_path) == []


def in_another_process(action):
    """Run an action in a fork; return what it reports through its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = action()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_error(case, folder):
    """Return 0 where writing raises OSError."""
    try:
        write_bundle(case, folder)
    except OSError:
        return 0
    return 2


@pytest.mark.parametrize("limit", [100, 5_000, 100_000])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, limit):
    case = case_of(doubling(), [torch.zeros(1 << 16)])
    case.digest  # noqa: B018 - whatever is computed lazily is computed before the limit

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return write_error(case, tmp_path / "case")

    assert in_another_process(limited) == 0
    assert listed(tmp_path) == []


def test_a_folder_without_permission_is_an_error(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    case = small_case()

    def as_nobody():
        if os.getuid() == 0:
            for path in (tmp_path, *tmp_path.parents):
                if path.is_relative_to("/tmp") and path != Path("/tmp"):
                    path.chmod(path.stat().st_mode | 0o055)
            os.setuid(65534)
        return write_error(case, closed / "case")

    assert in_another_process(as_nobody) == 0
    assert listed(closed) == []


# --- reading what is damaged ---------------------------------------------------------------------


def truncate(name, keep):
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * keep))


def flip(name, place):
    def change(folder):
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return change


def linked(name):
    def change(folder):
        outside = folder.parent / "outside"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return change


def input_with(**changes):
    value = vars(Dense(storage=0, dtype="float32", shape=(3,), stride=(1,))) | changes
    return lambda folder: edit(folder, inputs=[["x", {"kind": "dense", **value}]])


def without(key):
    def change(folder):
        facts = json.loads((folder / FACTS).read_text())
        del facts[key]
        facts["check"] = check_of(facts)
        (folder / FACTS).write_text(json.dumps(facts))

    return change


def replaced(folder):
    shutil.rmtree(folder)
    folder.write_text("a file")


def append(name, text):
    return lambda folder: (folder / name).write_text((folder / name).read_text() + text)


DAMAGE = {
    "truncated tensors": (truncate(TENSORS, 0.9), "tensors.safetensors is damaged: storage 0 lies outside the file"),
    "empty tensors": (truncate(TENSORS, 0), "tensors.safetensors is damaged"),
    "a flipped bit of a tensor": (flip(TENSORS, -1), "is not the case that was written: its digest differs"),
    "truncated facts": (truncate(FACTS, 0.5), "case.json cannot be read"),
    "empty facts": (truncate(FACTS, 0), "case.json cannot be read"),
    "garbage facts": (lambda folder: (folder / FACTS).write_bytes(b"\xff\xfe\x00"), "case.json cannot be read"),
    "deep facts": (lambda folder: (folder / FACTS).write_text("[" * 50_000), "case.json cannot be read"),
    "facts of another kind": (lambda folder: (folder / FACTS).write_text("[1]"), "case.json cannot be read"),
    "facts that are a number": (lambda folder: (folder / FACTS).write_text("3"), "case.json cannot be read"),
    "edited facts": (
        lambda folder: (folder / FACTS).write_text((folder / FACTS).read_text().replace("eager", "other")),
        "case.json has been changed since it was written",
    ),
    "wrong digest": (lambda folder: edit(folder, digest="0" * 64), "its digest differs"),
    "newer schema": (
        lambda folder: edit(folder, schema=SCHEMA + 1),
        f"was written in schema {SCHEMA + 1}, and this torchparity reads {SCHEMA}",
    ),
    "schema of another kind": (lambda folder: edit(folder, schema="1"), "was written in schema 1"),
    "schema zero": (lambda folder: edit(folder, schema=0), "was written in schema 0"),
    "no tensors": (lambda folder: (folder / TENSORS).unlink(), "has no tensors.safetensors"),
    "no script": (lambda folder: (folder / SCRIPT).unlink(), "has no repro.py"),
    "no facts": (lambda folder: (folder / FACTS).unlink(), "has no case.json"),
    "no user file": (lambda folder: (folder / "user_part.py").unlink(), "user_part.py cannot be read"),
    "edited script": (append(SCRIPT, "\n"), "repro.py has been changed since it was written"),
    "edited user file": (append("user_part.py", "#"), "user_part.py has been changed since it was written"),
    "binary script": (flip(SCRIPT, 3), "repro.py has been changed since it was written"),
    "traversal in files": (lambda folder: edit(folder, files={"../x.py": "0"}), "names files outside the bundle"),
    "absolute path in files": (lambda folder: edit(folder, files={"/etc/x.py": "0"}), "names files outside the bundle"),
    "the script in files": (lambda folder: edit(folder, files={SCRIPT: "0"}), "names files outside the bundle"),
    "files of another kind": (lambda folder: edit(folder, files=3), "it lists no files"),
    "traversal in the name": (lambda folder: edit(folder, name="../../x"), "names files outside the bundle"),
    "linked script": (linked(SCRIPT), "repro.py points outside the bundle"),
    "linked tensors": (linked(TENSORS), "tensors.safetensors points outside the bundle"),
    "linked user file": (linked("user_part.py"), "user_part.py points outside the bundle"),
    "not a folder": (replaced, "there is no bundle"),
    "nothing there": (shutil.rmtree, "there is no bundle"),
    "no inputs": (without("inputs"), "does not make a case"),
    "no script digest": (without("script"), "does not make a case"),
    "inputs of another kind": (lambda folder: edit(folder, inputs=5), "does not make a case"),
    "an unknown kind of input": (
        lambda folder: edit(folder, inputs=[["x", {"kind": "pickle"}]]),
        "does not make a case",
    ),
    "a storage that is not there": (input_with(storage=9), "lies in no storage"),
    "a negative offset": (input_with(offset=-1), "lies in no storage"),
    "a view beyond its storage": (input_with(shape=[300]), "reaches beyond its storage"),
    "a dtype that is code": (input_with(dtype="float32, print(1)"), "there is no tensor"),
    "a level that is not": (lambda folder: edit(folder, level="../.."), "does not make a case"),
    "a request of another kind": (lambda folder: edit(folder, request=[]), "does not make a case"),
    "other storages": (lambda folder: edit(folder, storages=[]), "holds 1 storages and case.json tells of 0"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_bundle_is_refused_and_nothing_of_it_runs(tmp_path, damage):
    marker = tmp_path / "it ran"
    case = replace(small_case(), files={"user_part.py": MARK.format(path=str(marker))})
    case = replace(case, graph=MARK.format(path=str(marker)) + case.graph)
    folder = write_bundle(case, tmp_path / "case")
    change, message = DAMAGE[damage]
    change(folder)
    for read in (read_bundle, judge_bundle):
        with pytest.raises(BundleError) as caught:
            read(folder)
        assert message in caught.value.message
        assert caught.value.hint
    assert not marker.exists()


def test_a_sound_bundle_runs_only_when_it_is_loaded(tmp_path):
    marker = tmp_path / "it ran"
    case = small_case()
    case = replace(case, graph=MARK.format(path=str(marker)) + case.graph)
    read = read_bundle(write_bundle(case, tmp_path / "case"))
    assert not marker.exists()
    load_case(read, tmp_path / "case")
    assert marker.exists()


# --- running what is sound -----------------------------------------------------------------------


def test_the_script_makes_the_model_and_its_inputs(folder):
    model, inputs, random = load_case(read_bundle(folder), folder).make()
    assert torch.equal(model(*inputs)[0], torch.tensor([2.0, 4.0, 6.0]))
    assert random == {}
    sys.modules.pop("user_part")


def test_loading_leaves_the_search_path_alone(folder):
    before = list(sys.path)
    load_case(read_bundle(folder), folder)
    assert sys.path == before
    sys.modules.pop("user_part")


def test_files_may_import_each_other(tmp_path):
    case = replace(small_case(), files={"bundle_one.py": "import bundle_two\n", "bundle_two.py": "NUMBER = 4\n"})
    case = replace(case, graph="import bundle_one\n" + case.graph)
    folder = write_bundle(case, tmp_path / "case")
    load_case(read_bundle(folder), folder)
    assert sys.modules.pop("bundle_one").bundle_two.NUMBER == 4
    assert sys.modules.pop("bundle_two").NUMBER == 4


def test_another_module_of_the_same_name_is_not_taken_for_the_cases_own(tmp_path):
    first = replace(small_case(), files={"bundle_three.py": "NUMBER = 1\n"})
    load_case(first)
    with pytest.raises(ResourceError, match="another one of that name is loaded here"):
        load_case(replace(first, files={"bundle_three.py": "NUMBER = 2\n"}))
    assert sys.modules.pop("bundle_three").NUMBER == 1


def test_a_case_for_a_device_that_is_not_here_is_unknown():
    case = small_case()
    elsewhere = replace(case, storages=tuple(replace(storage, device="cuda:77") for storage in case.storages))
    with pytest.raises(ResourceError) as caught:
        load_case(elsewhere)
    assert caught.value.message == "the case needs cuda:77, which this machine does not have"
    assert caught.value.exit_code == 125


def test_a_comment_that_looks_like_the_script_does_not_end_the_graph(tmp_path):
    graph = graph_of(lambda graph, x: (graph.call_function(torch.mul, (x, 2)),), ["x"])
    node = next(node for node in graph.graph.nodes if node.op == "call_function")
    node.stack_trace = '  File "a.py", line 3, in f\n    class Bound(x):  # --- its inputs ---- # --- the graph ----\n'
    case = case_of(graph, [torch.ones(1)])
    assert "class Bound(" in case.graph
    assert read_bundle(write_bundle(case, tmp_path / "case")).digest == case.digest


def test_large_writes_go_straight_from_memory(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(tensors, "write_all", lambda file, data: written.append(len(data)))
    case = case_of(doubling(), [torch.zeros(100)])
    with (tmp_path / "t").open("wb") as file:
        tensors.write_storages(file, case.storages)
    assert written[1:] == [400]


def test_the_source_of_a_module_that_a_case_carries_can_be_looked_up(tmp_path):
    """Triton compiles what it finds there."""
    case = replace(small_case(), files={"carried_part.py": "def answer():\n    return 42\n"})
    folder = write_bundle(case, tmp_path / "case")
    load_case(read_bundle(folder), folder)
    try:
        assert inspect.getsource(sys.modules["carried_part"].answer) == "def answer():\n    return 42\n"
    finally:
        del sys.modules["carried_part"]
