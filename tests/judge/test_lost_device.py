"""Errors of a device that stick: an answer about the candidate, and nothing is asked of that device again.

The device is faked at our own seam (`torchapi.settle`, `torchapi.device_lost`); tests/real has real ones.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchparity
from torchparity import Status, torchapi
from torchparity.errors import ResourceError
from torchparity.judge import ground
from torchparity.run.noise import Noise
from torchparity.run.plan import Plan
from torchparity.run.state import ModelState
from torchparity.run.step import Runner
from torchparity.run.subject import Subject

PLANTED = Path(__file__).parents[1] / "planted"
MODEL = """
import sys
sys.path.insert(0, {planted!r})
import torch
from torch._dynamo import register_backend
from lost_device import asserting

register_backend(asserting, name="asserting")

def wave(x):
    return (x.sin() + x.cos().relu()) * 2 + x.tanh()

def make():
    torch.manual_seed(0)
    return wave, (torch.randn(4, 5),)
"""


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.cos()


@pytest.fixture
def device(monkeypatch):
    """A device that can be lost, and is given back."""
    monkeypatch.setattr(torchapi, "device_lost", torchapi.device_lost)
    for name in ("restore", "release"):
        monkeypatch.setattr(ModelState, name, getattr(ModelState, name))
    monkeypatch.syspath_prepend(PLANTED)
    import lost_device

    yield lost_device
    torch.compiler.reset()


def test_what_the_candidate_does_to_the_device_is_the_verdict(device):
    verdict = torchparity.check(wave, (torch.randn(3),), backend=device.asserting)

    assert verdict.status is Status.DIFFERS
    assert verdict.kind == "crashes"
    assert verdict.failure is not None
    assert verdict.failure.type == "device-side assert"
    assert verdict.failure.phase == "forward"
    assert verdict.differs_in == (1, 1)
    assert any("the device of this process is lost" in reason for reason in verdict.reasons)
    assert [run.name for run in verdict.runs].count("asserting 2") == 0


def test_where_the_model_itself_loses_the_device_nobody_else_is_blamed(device):
    def model(x: torch.Tensor) -> torch.Tensor:
        device.lose()
        device.fails()
        return x

    verdict = torchparity.check(model, (torch.randn(3),), backend="eager")

    assert verdict.status is Status.UNKNOWN
    assert "device-side assert" in verdict.reasons[0]
    assert len(verdict.runs) == 1


def test_where_a_run_of_ours_loses_the_device_it_is_no_answer(device, monkeypatch):
    def operate(self, *args):
        device.lose()
        device.fails()

    monkeypatch.setattr(Noise, "operate", operate)
    with pytest.raises(ResourceError, match="the device was lost in the run 'noise 1'"):
        torchparity.check(wave, (torch.randn(3),), backend="eager")


def test_a_kernel_that_never_ends_is_the_candidates(device, monkeypatch):
    given: list[float | None] = []

    def settle(where: torch.device, seconds: float | None = None) -> None:
        given.append(seconds)
        if seconds is not None:
            raise torchapi.KernelHangs("the device is still busy")

    monkeypatch.setattr(torchapi, "settle", settle)
    verdict = torchparity.check(wave, (torch.randn(3),), backend="eager")

    assert verdict.status is Status.DIFFERS
    assert verdict.failure is not None
    assert verdict.failure.type == torchapi.HANGS
    assert given[-1] == ground.LEAST_PATIENCE
    assert set(given[:-1]) == {None}  # Eager may take as long as it likes.


def test_an_error_that_leaves_the_device_alone_is_an_error_like_any_other(monkeypatch):
    def refuses(graph_module, inputs):
        def run(*args):
            raise torch.AcceleratorError("CUDA error: invalid configuration argument")

        return run

    verdict = torchparity.check(wave, (torch.randn(3),), backend=refuses)

    assert verdict.kind == "raises"
    assert verdict.differs_in == (2, 2)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be", "device-side assert"),
        ("Triton Error [CUDA]: an illegal memory access was encountered", "illegal memory access"),
        ("CUDA error: misaligned address", "misaligned address"),
        ("CUDA error: unspecified launch failure", "unspecified launch failure"),
    ],
)
def test_a_fault_has_one_name_whoever_noticed_it(text, fault):
    assert torchapi.device_fault(RuntimeError(text)) == fault
    assert torchapi.is_device_error(RuntimeError(text))
    assert not torchapi.is_device_error(RuntimeError("shape mismatch"))


def test_the_runner_of_a_lost_device_leaves_the_model_alone(device):
    subject = Subject(torch.nn.Linear(2, 2), (torch.randn(1, 2),))
    runner = Runner(subject, Plan())
    device.lose()
    runner.lost = True
    runner.release()


@pytest.mark.slow
def test_every_command_goes_all_the_way(tmp_path):
    """Check isolated, and diagnose: the place, the stage and a script that shows it, though each process dies of it."""
    (tmp_path / "model.py").write_text(MODEL.format(planted=str(PLANTED)))
    command = [sys.executable, "-m", "torchparity"]
    checked = subprocess.run(
        [*command, "check", "model.py:make", "--backend", "asserting", "--isolate", "-q"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "`index out of bounds: 0 <= tmp4 < 5` fails at cabcd.py:31" in " ".join(checked.stdout.split())
    assert "of this process" not in checked.stdout  # It was another one, and is gone.

    diagnosed = subprocess.run(
        [*command, "diagnose", "model.py:make", "--backend", "asserting", "--out", "found", "-q"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert diagnosed.returncode == 1, diagnosed.stdout + diagnosed.stderr
    assert "cos" in diagnosed.stdout
    assert "3 of 3" in diagnosed.stdout
