"""The same check on a GPU: three models, clean and with a fault."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import make

import torchparity
from torchparity import Status
from torchparity.faults import plant

pytestmark = [
    pytest.mark.cuda,
    # Owed to the machine: there is no GPU on most of them.
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MODELS = ("transformer", "convnet", "recurrent")
# The first operations of the recurrent model make its zero state, or multiply it: a fault there changes nothing.
SITES = {"transformer": 0, "convnet": 0, "recurrent": 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_inductor_is_same(name, dtype):
    model, inputs = make(name, dtype, "cuda")
    verdict = torchparity.check(model, inputs, train=True)
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)


@pytest.mark.parametrize("name", MODELS)
def test_with_tf32_allowed_it_is_same(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    model, inputs = make(name, torch.float32, "cuda")
    verdict = torchparity.check(model, inputs, train=True)
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    assert verdict.environment["tf32_products"]


def test_a_graph_is_recorded_and_replayed():
    model, inputs = make("transformer", torch.float32, "cuda")
    verdict = torchparity.check(model, inputs, mode="reduce-overhead")
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    assert sum(run.name.startswith("inductor") for run in verdict.runs) == 6


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["scale_tiny", "matmul_tf32", "wrong_element"])
@pytest.mark.parametrize("name", MODELS)
def test_a_fault_differs(name, kind, where, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # Where it is allowed, eager has its noise too.
    model, inputs = make(name, torch.float32, "cuda")
    backend = plant(kind, where=where, site=SITES[name])
    verdict = torchparity.check(model, inputs, backend=backend, train=True)
    assert backend.planted is not None
    assert verdict.status is Status.DIFFERS, verdict.reasons
