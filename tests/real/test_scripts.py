"""`python repro.py` in a fresh process: the exit code that the oracle gives, with torch alone."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models import MODELS, make
from torch import nn

import torchparity
from torchparity.faults import plant
from torchparity.judge.cases import judge_case
from torchparity.judge.script import write_bundle
from torchparity.repro.case import Case
from torchparity.repro.opening import open_case
from torchparity.repro.script import enclosed
from torchparity.request import Request

WITHOUT_TORCHPARITY = (
    "import sys, runpy; sys.modules['torchparity'] = None; path = sys.argv.pop();"
    "sys.argv = [path]; runpy.run_path(path, run_name='__main__')"
)


def run_script(folder: Path, *, alone: bool = False) -> subprocess.CompletedProcess[str]:
    start = ["-c", WITHOUT_TORCHPARITY] if alone else []
    command = [sys.executable, *start, str(folder / "repro.py")]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder.parent)


def captured(model: Any, args: tuple[Any, ...], *, backend: Any = "aot_eager", level: int = 0, **options: Any) -> Case:
    torch.manual_seed(0)
    return torchparity.capture(model, args, backend=backend, **options)[level]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4))


class Reading(nn.Module):
    """Everything that the judge has to tell apart: mutation, aliases, integers, empty results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        self.seen.add_(x.sum(0))
        big = torch.tensor([2**60 + 1, 3])
        return x.t(), self.seen * 2, x.argmax(1), x[:, :0], big + 1, torch.fft.fft(x)


def branches(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([1.0, 2.0, 3.0])
    return torch.cond(x.sum() > 0, lambda x: x.sin() + table, lambda x: x.cos() * 2, (x,))


CLEAN: dict[str, Any] = {
    "network": lambda: captured(network(), (torch.randn(4, 8),), train=True),
    "backward graph": lambda: captured(network(), (torch.randn(4, 8),), train=True, level=2),
    "autocast": lambda: captured(network(), (torch.randn(4, 8),), autocast="bfloat16"),
    "mutation and aliases": lambda: captured(Reading(), (torch.randn(5, 3),)),
    "dynamic sizes": lambda: captured(lambda x: x.sum(0) / x.shape[0], (torch.randn(5, 3),), dynamic=True),
    "branches": lambda: captured(branches, (torch.randn(3),)),
    "inductor": lambda: captured(network(), (torch.randn(4, 8),), train=True, backend="inductor"),
}


QUICK = ("mutation and aliases", "dynamic sizes", "inductor")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CLEAN]
)
def test_a_clean_script_says_same_with_torch_alone(name, tmp_path):
    case = CLEAN[name]()
    folder = write_bundle(case, tmp_path / "case")
    verdict = judge_case(case, path=folder)
    ran = run_script(folder, alone=True)
    assert verdict.exit_code == 0, verdict.reasons
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^SAME: all \d+ leaves", ran.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("scale", "forward"),
        ("raises", "forward"),
        pytest.param("wrong_element", "backward", marks=pytest.mark.slow),
        pytest.param("wrong_stride", "forward", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_differs_in_script_and_oracle(kind, where, tmp_path):
    case = captured(network(), (torch.randn(4, 8),), train=True)
    case = replace(case, request=replace(case.request, backend=plant(kind, where=where)))
    folder = write_bundle(case, tmp_path / "case")
    ran = run_script(folder)
    assert judge_case(case, path=folder).exit_code == 1
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "DIFFERS" in ran.stdout
    assert "Needs torch and torchparity" in (folder / "repro.py").read_text()


BACKEND = """
def broken(graph_module, inputs):
    raise RuntimeError("this compiler has had enough")
"""


def test_a_backend_of_the_users_that_raises_travels_with_the_bundle(tmp_path, monkeypatch):
    (tmp_path / "script_test_backend.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))
    import script_test_backend

    case = captured(torch.sin, (torch.randn(3),), backend=script_test_backend.broken)
    folder = write_bundle(case, tmp_path / "cases" / "case")
    (tmp_path / "script_test_backend.py").unlink()
    ran = run_script(folder, alone=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "DIFFERS: the compiled model raises RuntimeError at compile" in ran.stdout
    del sys.modules["script_test_backend"]
    assert judge_case(case, path=folder).exit_code == 1
    del sys.modules["script_test_backend"]


# --- what is not an answer -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    case = captured(torch.sin, (torch.randn(3),), backend="eager")
    return write_bundle(case, tmp_path_factory.mktemp("cases") / "case")


def edited(folder: Path, pattern: str, text: str) -> None:
    script = folder / "repro.py"
    changed, count = re.subn(pattern, text, script.read_text(), flags=re.MULTILINE)
    assert count == 1
    script.write_text(changed)


def copied(folder: Path, place: Path) -> Path:
    place.mkdir()
    for path in folder.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_without_its_tensors_a_script_says_so_in_two_lines(plain, tmp_path, damage):
    folder = copied(plain, tmp_path / "case")
    tensors = folder / "tensors.safetensors"
    if damage == "missing":
        tensors.unlink()
    else:
        tensors.write_bytes(tensors.read_bytes()[:-3] if damage == "truncated" else b"[" * 99)
    ran = run_script(folder, alone=True)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    error, hint = ran.stderr.splitlines()
    assert error.startswith("error: the inputs cannot be read: ")
    assert hint == "hint: tensors.safetensors belongs beside repro.py; copy the whole folder"


@pytest.mark.parametrize("device", ["cuda:77", "xpu:3"])
def test_a_device_that_is_not_there_is_unknown(plain, tmp_path, device):
    folder = copied(plain, tmp_path / "case")
    edited(folder, r"^DEVICES = .*$", f"DEVICES = ({device!r}, 'cpu')")
    ran = run_script(folder, alone=True)
    assert ran.returncode == 125, ran.stdout + ran.stderr
    assert ran.stderr == f"UNKNOWN: this machine has no {device}\n"


def test_a_compiler_that_is_not_there_is_unknown(tmp_path):
    case = captured(torch.sin, (torch.randn(3),), backend="eager")
    case = replace(case, request=Request(backend=plant("scale")))
    ran = run_script(write_bundle(case, tmp_path / "case"), alone=True)
    assert ran.returncode == 125, ran.stdout + ran.stderr
    assert "UNKNOWN: the compiler cannot be had: ModuleNotFoundError" in ran.stdout


def test_a_judgement_that_fails_is_unknown(plain, tmp_path):
    folder = copied(plain, tmp_path / "case")
    edited(folder, r"^    THRESHOLD = .*$", "    THRESHOLD = None")
    ran = run_script(folder, alone=True)
    assert ran.returncode == 125, ran.stdout + ran.stderr
    assert "UNKNOWN: the judgement itself failed" in ran.stdout


# --- the judge in the script is the judge --------------------------------------------------------

UNARY = (torch.sin, torch.tanh, torch.exp, torch.relu, torch.sigmoid, torch.nn.functional.gelu)
FAULTS = ("scale", "wrong_element", "truncated", "nan", "offset", "zeroed", "wrong_stride", "integer_off_by_one")


def random_model(seed: int) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Return a function of a few random operations: products, sums, normalisations, integers, an alias, a write."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    weight = torch.randn(6, 6) / 3
    words = [drawn.choice(("unary", "product", "sum", "softmax", "norm")) for _ in range(drawn.randint(2, 6))]
    functions = [drawn.choice(UNARY) for _ in words]

    def model(x: torch.Tensor) -> tuple[Any, ...]:
        y = x
        for word, function in zip(words, functions, strict=True):
            if word == "unary":
                y = function(y)
            elif word == "product":
                y = y @ weight
            elif word == "sum":
                y = y + y.sum(-1, keepdim=True)
            elif word == "softmax":
                y = torch.softmax(y, -1)
            else:
                y = torch.nn.functional.layer_norm(y, (6,))
        return y, y.argmax(-1), x.t()

    return model, (torch.randn(5, 6, requires_grad=drawn.random() < 0.5),)


def printed_verdict(case: Case) -> Any:
    """Return the verdict of the judge that is printed into the script, on what the script makes."""
    module = open_case(case).module
    printed: dict[str, Any] = {}
    exec(enclosed("judge", "torchparity.judge.standalone", ("judged",)), printed)
    blobs = {number: storage.data for number, storage in enumerate(case.storages)}
    return printed["judge"]()(vars(module), module.Reader(blobs, module.DEVICES))


@pytest.mark.parametrize("seed", range(12))
def test_the_judge_in_the_script_says_what_the_oracle_says(seed):
    model, args = random_model(seed)
    case = captured(model, args, backward=True if args[0].requires_grad else None)
    drawn = random.Random(seed)
    for backend in ("aot_eager", plant(drawn.choice(FAULTS), site=drawn.randrange(3))):
        asked = replace(case, request=replace(case.request, backend=backend))
        ours, printed = judge_case(asked), printed_verdict(asked)
        assert type(printed) is not type(ours)
        assert printed.status.value == ours.status.value
        named = sorted((leaf.role, leaf.kind, leaf.score, leaf.aggregate_score, leaf.note) for leaf in ours.leaves)
        assert (
            sorted((leaf.role, leaf.kind, leaf.score, leaf.aggregate_score, leaf.note) for leaf in printed.leaves)
            == named
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(MODELS))
def test_the_printed_judge_raises_no_false_alarm_on_inductor(name, dtype):
    model, args = make(name, dtype)
    assert printed_verdict(torchparity.capture(model, args, train=True)[0]).exit_code == 0
