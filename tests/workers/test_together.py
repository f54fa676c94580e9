"""Kernels of several programs, built by one run of a real C++ compiler, and what becomes of those that are not."""

import importlib.util
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchparity import torchapi
from torchparity.workers.together import Together, asking


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """What inductor wants built for two functions, with its own results removed."""
    seen = []

    def ask(build):
        kept = tmp_path_factory.mktemp("kernel") / Path(build.source).name
        kept.write_text(Path(build.source).read_text())
        target = kept.with_name(Path(build.target).name)
        seen.append(replace(build, source=str(kept), target=str(target)))
        return False

    x = torch.arange(12.0).view(3, 4)
    torch.compiler.reset()
    with torchapi.fresh_compiler_cache(), torchapi.built_by(ask):
        assert torch.equal(torch.compile(lambda x: x * 3 + 1)(x), x * 3 + 1)
        torch.compiler.reset()
        assert torch.equal(torch.compile(lambda x: x * 5 - 2)(x), x * 5 - 2)
    assert len(seen) == 2
    return seen


def told(together, builds):
    """Have several processes' worth of kernels asked for at once; return the answers, in their order."""
    answers = [None] * len(builds)

    def ask(place):
        answers[place] = asking(together.address)(builds[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(builds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def result_of(build, key, x):
    """Load what was built as inductor does, and call it."""
    spec = importlib.util.spec_from_file_location(f"{key}.kernel", build.target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = torch.empty_like(x)
    module.kernel(x, found)
    return found


def test_kernels_that_are_built_together_are_each_what_they_are(builds, tmp_path):
    x = torch.arange(12.0).view(3, 4)
    with Together() as together:
        runs = []
        compiles = together._compiles
        together._compiles = lambda *asked: runs.append(asked) or compiles(*asked)
        assert together._built(builds, tmp_path) == {build.target for build in builds}
        assert len(runs) == 1
    assert torch.equal(result_of(builds[0], "first", x), x * 3 + 1)
    assert torch.equal(result_of(builds[1], "second", x), x * 5 - 2)


def test_one_that_cannot_be_built_is_in_nobodys_way(builds, tmp_path):
    wrong = tmp_path / "wrong.main.cpp"
    wrong.write_text(Path(builds[0].source).read_text().replace("kernel(const", "kernel(nonsense, const"))
    broken = replace(builds[0], source=str(wrong), target=str(tmp_path / "wrong.main.so"))
    missing = replace(broken, source=str(tmp_path / "nowhere.main.cpp"))
    for build in builds:
        Path(build.target).unlink(missing_ok=True)
    with Together() as together:
        assert told(together, [broken, builds[0], missing, builds[1]]) == [False, True, False, True]
    assert not Path(broken.target).exists()
    assert all(Path(build.target).exists() for build in builds)


def test_whoever_finds_nobody_to_build_builds_alone(builds, tmp_path):
    assert asking(str(tmp_path / "desk"))(builds[0]) is False
    x = torch.arange(12.0)
    with Together() as together:
        ask = asking(together.address)
        assert ask(builds[0])
    torch.compiler.reset()
    with torchapi.fresh_compiler_cache(), torchapi.built_by(ask):  # It has gone meanwhile.
        assert torch.equal(torch.compile(lambda x: x * 7 - 1)(x), x * 7 - 1)


def test_what_is_no_kernel_is_not_asked_for(tmp_path):
    source = tmp_path / "a.main.cpp"
    source.write_text("int main() {}")
    for command in (f"g++ {source} -shared -o {tmp_path}/a.so", f"g++ {tmp_path}/a.cpp -o {tmp_path}/a", "g++ -v"):
        assert torchapi.build_of(command, "a.so") is None


def test_a_program_is_built_by_a_hunt_and_says_the_same(tmp_path):
    asked = []
    text = "lambda a: (a.sin().sum(0), a.argmax(-1))"
    a = torch.arange(12.0).view(3, 4)
    torch.compiler.reset()
    with Together() as together:
        ask = asking(together.address)
        with torchapi.fresh_compiler_cache(), torchapi.built_by(lambda build: asked.append(ask(build)) or asked[-1]):
            found = torch.compile(eval(text))(a)
    assert asked == [True]
    torch.testing.assert_close(found, eval(text)(a))
