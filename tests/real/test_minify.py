"""A planted fault in a model, made small by asking the oracle in workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import pytest
import torch

import torchparity
from torchparity import Status, UsageError, read_bundle
from torchparity.faults import plant


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = x.sin()
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x.softmax(-1)


@pytest.fixture(scope="module")
def failing():
    torch.manual_seed(0)
    (case, *_) = torchparity.capture(Model().eval(), (torch.randn(4, 8),), backend=plant("matmul_tf32"))
    return case


@pytest.mark.slow
def test_one_operation_is_left_and_fails_alone(failing, tmp_path):
    heard = []
    small = torchparity.minify(failing, out=tmp_path / "small", listen=heard.append)
    assert failing.compute_nodes > 8
    assert small.case.compute_nodes == 1
    assert "linear" in small.case.graph
    assert small.reproduced == (3, 3)
    assert small.queries == len(heard) <= 12
    assert torchparity.run_bundle(tmp_path / "small").status is Status.DIFFERS
    assert read_bundle(tmp_path / "small").digest == small.case.digest


def test_a_case_that_does_not_fail_is_refused():
    (case, *_) = torchparity.capture(torch.sin, (torch.randn(3),), backend="aot_eager")
    with pytest.raises(UsageError, match="does not fail here"):
        torchparity.minify(case)


class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(12):
            x = torch.sin(x) if place == 5 else x + 0.25 * place
        return x


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_whole_case(backends, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = torchparity.capture(Chain(), (torch.randn(4, 3),), backend=backends.wrong_sine)
    case = next(case for case in cases if case.level == "aot")
    slow = replace(case, request=replace(case.request, backend=backends.slow_wrong_sine))
    torchparity.write_bundle(slow, tmp_path / "case")
    process = subprocess.Popen(
        [sys.executable, "-m", "torchparity", "minify", "case", "--out", "small", "--workers", "2"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    small = tmp_path / "small" / "case"
    while process.poll() is None and not ((small / "case.json").exists() and read_bundle(small).compute_nodes == 1):
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=100)  # The whole case alone takes longer.
    assert process.returncode == 130
    assert read_bundle(tmp_path / "small" / "case").compute_nodes == 1
    assert not list(tmp_path.glob("small/queries/*"))
    log = [json.loads(line) for line in (tmp_path / "small" / "log.jsonl").read_text().splitlines()]
    whole = next(entry["key"] for entry in log if entry["event"] == "asked")
    assert whole not in [entry["key"] for entry in log if entry["event"] == "answered"]
