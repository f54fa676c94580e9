"""The pytest plugin, in pytest runs of their own: what passes, what fails, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from torchparity import ResourceError, Status, Verdict
from torchparity.plugin import Misused, Parity, check_options, folder_of, judge, words

pytest_plugins = ["pytester"]

CONFTEST = """
import torch

@torch._dynamo.register_backend(name="one_percent_off")
def one_percent_off(graph_module, inputs):
    return lambda *args: tuple(value * 1.01 for value in graph_module(*args))
"""
MODELS = """
import unittest
import pytest
import torch
from torchparity.faults import plant

def linear(size=4):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4), (torch.randn(2, size),)

def paths(verdict):
    return {leaf.path for leaf in verdict.leaves}
"""
KINDS = """
def test_same(parity, parity_backend):
    verdict = parity(*linear())
    assert verdict.status.value == "same"
    assert verdict.recipe["backend"] == parity_backend == "aot_eager"

@pytest.mark.parity(backends=["eager", "one_percent_off"])
def test_two(parity):
    parity(*linear())

@pytest.mark.parity(train=True)
class TestMarkers:
    def test_options(self, parity):
        assert "grad.weight" in paths(parity(*linear()))

    @pytest.mark.parity(["eager"], train=False)
    def test_the_nearest_counts(self, parity):
        verdict = parity(*linear())
        assert "grad.weight" not in paths(verdict)
        assert verdict.recipe["backend"] == "eager"

    @pytest.mark.parity(backend="eager")
    def test_a_call_has_the_last_word(self, parity):
        assert "grad.weight" not in paths(parity(*linear(), train=False))

def test_planted(parity):
    parity(*linear(), backend=plant("scale_percent"))

def test_local(parity):
    parity(*linear(), backend=lambda graph, inputs: lambda *args: tuple(value * 1.01 for value in graph(*args)))

def test_unknown(parity):
    parity(*linear(5))

def test_asked_wrongly(parity):
    parity(*linear(), steps=0, train=True)

def test_going_on(parity):
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception):
            parity(*linear(), backend=plant("scale_percent"))
    parity(*linear())

def test_by_name(request):
    assert request.getfixturevalue("parity")(*linear()).recipe["backend"] == "aot_eager"

class TestOld(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, parity):
        self.parity = parity

    def test_method(self):
        self.parity(*linear())

@pytest.mark.parametrize("parity_backend", ["eager"])
def test_own_list(parity):
    assert parity(*linear()).recipe["backend"] == "eager"
"""


def run(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """One run of pytest with a test for each way that a check can end."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_kinds.py").write_text(MODELS + KINDS)
    for bundle in (folder / "parity-artifacts" / "old", folder / "kept" / "bundle"):
        bundle.mkdir(parents=True)
        for name in ("case.json", "repro.py", "test_of_the_user.py", "conftest.py"):
            (bundle / name).write_text("raise RuntimeError('there are no tests in a bundle')")
    (folder / "pytest.ini").write_text("[pytest]\nparity_backends = aot_eager\naddopts = --strict-markers\n")
    done = run(folder, "pytest", "-v", "--junitxml=out.xml", "-p", "no:cacheprovider")
    cases = {case.get("name"): case for case in ElementTree.parse(folder / "out.xml").iter("testcase")}
    return SimpleNamespace(folder=folder, stdout=done.stdout, code=done.returncode, cases=cases)


def facts(case):
    return {entry.get("name"): entry.get("value") for entry in case.iter("property")}


def message(ended, name):
    return ended.cases[name].find("failure").text


FAILING = {
    "test_two[one_percent_off]",
    "test_planted[aot_eager]",
    "test_local[aot_eager]",
    "test_unknown[aot_eager]",
    "test_asked_wrongly[aot_eager]",
}
PASSING = {
    "test_same[aot_eager]",
    "test_two[eager]",
    "test_options[aot_eager]",
    "test_the_nearest_counts[eager]",
    "test_a_call_has_the_last_word[eager]",
    "test_going_on[aot_eager]",
    "test_by_name",
    "test_method",
    "test_own_list[eager]",
}


def test_same_passes_and_the_rest_fails(ended):
    assert ended.code == 1, ended.stdout
    assert {name for name, case in ended.cases.items() if case.find("failure") is not None} == FAILING
    assert {name for name, case in ended.cases.items() if len(case) == 1 and case[0].tag == "properties"} == PASSING
    assert "torchparity: on aot_eager" in ended.stdout


def test_a_failure_shows_the_table_and_the_line_of_the_user_and_nothing_of_ours(ended):
    text = message(ended, "test_two[one_percent_off]")
    assert ">       parity(*linear())" in text
    assert re.search(r"DIFFERS  Linear against one_percent_off", text)
    assert re.search(r"output +value .* became ", text)
    assert "plugin.py" not in text
    assert "torch.__trace" not in ended.stdout


def test_the_bundle_of_a_failure_fails_again(ended):
    text = message(ended, "test_two[one_percent_off]")
    (path,) = re.findall(r"torchparity run (parity-artifacts/\S+/bundle)", text)
    folder = (ended.folder / path).parent
    assert sorted(entry.name for entry in folder.iterdir()) == ["bundle", "table.txt", "verdict.json"]
    assert json.loads((folder / "verdict.json").read_text())["status"] == "differs"
    assert (folder / "table.txt").read_text().startswith("DIFFERS  Linear against one_percent_off")
    done = run(ended.folder, "torchparity", "run", path)
    assert done.returncode == 1, done.stderr
    assert "reproduced 1 of 1" in done.stdout


def test_a_failure_that_no_bundle_can_show_says_so(ended):
    text = message(ended, "test_local[aot_eager]")
    assert "no bundle: no graph of Linear fails by itself (0 were judged: " in text
    assert "register it under a name" in text
    (path,) = re.findall(r"artifacts: (\S+)", text)
    assert sorted(entry.name for entry in (ended.folder / path).iterdir()) == ["table.txt", "verdict.json"]


def test_unknown_fails_with_its_reason_and_without_a_bundle(ended):
    text = message(ended, "test_unknown[aot_eager]")
    assert "UNKNOWN  Linear against aot_eager" in text
    assert "the model itself raises RuntimeError" in text
    assert "bundle" not in text


def test_a_question_that_means_nothing_is_two_lines(ended):
    text = message(ended, "test_asked_wrongly[aot_eager]")
    assert "E       Failed: 0 optimizer steps leave nothing to compare\nE       hint: use --steps 1 or more" in text


def test_properties_reach_junit(ended):
    found = facts(ended.cases["test_two[one_percent_off]"])
    assert float(found.pop("parity.score")) > 8
    assert re.fullmatch(r"parity-artifacts/test_kinds.py-test_two-one_percent_off-\w{8}", found.pop("parity.artifacts"))
    assert found == {
        "parity.backend": "one_percent_off",
        "parity.status": "differs",
        "parity.worst_leaf": "output",
        "parity.kind": "value",
    }
    same = facts(ended.cases["test_same[aot_eager]"])
    assert (same["parity.status"], same["parity.kind"], same["parity.artifacts"]) == ("same", "", "")


def test_of_several_checks_the_worst_is_told_and_each_failure_is_kept(ended):
    found = facts(ended.cases["test_going_on[aot_eager]"])
    assert found["parity.status"] == "differs"
    folder = ended.folder / found["parity.artifacts"]
    assert (folder / "bundle" / "case.json").is_file()
    assert (folder / "failure-2" / "bundle" / "case.json").is_file()


def test_the_summary_lists_what_failed_and_where_it_is(ended):
    section = ended.stdout.partition("= torchparity =")[2].partition("= short test summary")[0]
    assert "4 tests without parity" in section
    assert re.search(r"differs  test_kinds.py::test_two\[one_percent_off\]  output value \d", section)
    assert re.search(r"unknown  test_kinds.py::test_unknown\[aot_eager\]\n +parity-artifacts/test_kinds", section)
    assert "test_going_on" not in section


@pytest.mark.slow
def test_with_xdist_each_test_has_its_folder(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        MODELS
        + """
@pytest.mark.parity(backends=["inductor"])
@pytest.mark.parametrize("size", [4, 5])
def test_many(parity, size):
    parity(*linear(), backend="eager")
    parity(*linear(size))

def test_by_name(request):
    request.getfixturevalue("parity")
"""
    )
    names = ["--parity-backend=aot_eager", "--parity-backend", "one_percent_off, aot_eager"]
    names += ["--parity-artifacts=else/where", "--parity-no-bundle", "--parity-unknown=skip", "-rs"]
    result = pytester.runpytest_subprocess("-n2", *names, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2, skipped=2)
    (folder,) = (pytester.path / "else" / "where").iterdir()
    assert re.fullmatch(r".*-test_many-(4-one_percent_off|one_percent_off-4)-\w{8}", folder.name)
    assert sorted(entry.name for entry in folder.iterdir()) == ["table.txt", "verdict.json"]
    result.stdout.fnmatch_lines(
        [
            "*::test_by_name cannot be repeated for 2 backends",
            "hint: take the fixture `parity` as an argument*",
            "*= torchparity =*",
            "1 test without parity*",
            "differs *",
            f"*else/where/{folder.name}",
            "SKIPPED [[]2] test_with_xdist_each_test_has_its_folder.py:*: parity is unknown: the model itself raises*",
        ]
    )


@pytest.mark.parametrize("processes", [0, 1])
def test_a_backend_that_is_not_there_stops_before_the_first_test(pytester, processes):
    pytester.makepyfile(
        """
        import pathlib, pytest

        @pytest.mark.parity(backends=["inducto"])
        def test_a(parity):
            pathlib.Path("ran").touch()

        def test_b():
            pathlib.Path("ran").touch()
        """
    )
    result = pytester.runpytest_subprocess(f"-n{processes}")
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == (1 if processes else pytest.ExitCode.USAGE_ERROR)
    assert not (pytester.path / "ran").exists()
    assert "INTERNALERROR" not in text and "Traceback" not in text
    told = r"there is no torch.compile backend named 'inducto' \(in \S+::test_a\)\nhint: did you mean 'inductor'\?"
    assert re.search(told, text)


@pytest.mark.parametrize("arguments", [["--parity-backend=,"], ["-o", "parity_unknown=perhaps"]])
def test_settings_that_mean_nothing_are_two_lines(pytester, arguments):
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = result.stderr.str().strip().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("ERROR: ") and lines[1].startswith("hint: ")


def test_a_run_without_parity_imports_no_torch(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_it(request):
            assert request.config.pluginmanager.hasplugin("torchparity")
            assert "torch" not in sys.modules
            ours = {name for name in sys.modules if name.split(".")[0] == "torchparity"}
            assert ours == {"torchparity", "torchparity.plugin", "torchparity.plugin.silence", "torchparity.version"}
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert "torchparity" not in result.stdout.str().partition("collected")[2]


@pytest.mark.parametrize("policy", ["pass", "skip", "fail"])
def test_what_unknown_means_is_the_choice_of_the_user(policy, monkeypatch, tmp_path):
    unknown = Verdict(status=Status.UNKNOWN, reasons=("no answer",), recipe={"backend": "eager"})
    monkeypatch.setattr("torchparity.verbs.check.check", lambda *args, **options: unknown)
    config = SimpleNamespace(
        rootpath=tmp_path,
        invocation_params=SimpleNamespace(dir=tmp_path),
        getoption=lambda name: None,
        getini=lambda name: policy,
    )
    node = SimpleNamespace(
        config=config, nodeid="test_a.py::test", user_properties=[("own", 1)], iter_markers=lambda name: []
    )
    if policy == "pass":
        assert Parity(node, "eager")(None) is unknown
    else:
        with pytest.raises(getattr(pytest, policy).Exception, match="no answer"):
            Parity(node, "eager")(None)
    assert node.user_properties[:3] == [("own", 1), ("parity.backend", "eager"), ("parity.status", "unknown")]
    assert (tmp_path / "parity-artifacts").exists() == (policy == "fail")


def test_a_machine_that_cannot_answer_is_unknown(monkeypatch):
    def full(*args, **options):
        raise ResourceError("out of memory", hint="buy more")

    monkeypatch.setattr("torchparity.verbs.check.check", full)
    verdict = judge(None, (), None, {"backend": "eager"})
    assert verdict.status is Status.UNKNOWN
    assert verdict.reasons == ("out of memory (hint: buy more)",)


def test_options_that_check_does_not_have_are_named():
    check_options({"train": True, "tolerance": 0.1}, "test_a.py")
    with pytest.raises(Misused, match=r"no option 'trian' \(in test_a.py\)\nhint: did you mean 'train'"):
        check_options({"trian": True}, "test_a.py")


def test_names_of_backends():
    assert words(["a,b", " c ", "a", ""]) == ["a", "b", "c"]


HOSTILE = [
    "tests/test_a.py::test_x[a/b]",
    "tests/test_a.py::test_x[a\\b]",
    "tests/test_a.py::test_x[../../..]",
    "tests/test_a.py::test_x[\u00fc]",
    "tests/test_a.py::test_x[\u00e4]",
    "tests/test_a.py::test_x[con:*?<>|]",
    f"tests/test_a.py::test_x[{'a' * 5000}]",
    f"tests/test_a.py::test_x[{'b' + 'a' * 5000}]",
    "\ud800",
    "",
]


def test_folders_have_safe_names_of_their_own(tmp_path):
    config = SimpleNamespace(rootpath=tmp_path, getoption=lambda name: None)
    folders = [folder_of(name, config) for name in HOSTILE]
    assert len(set(folders)) == len(HOSTILE)
    for folder in folders:
        assert folder.parent == tmp_path / "parity-artifacts"
        assert re.fullmatch(r"\w[\w.-]{0,100}", folder.name, re.ASCII)
        assert folder == folder_of(HOSTILE[folders.index(folder)], config)
