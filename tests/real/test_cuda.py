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


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["scale_tiny", "matmul_tf32", "wrong_element"])
@pytest.mark.parametrize("name", MODELS)
def test_a_fault_differs(name, kind, where):
    model, inputs = make(name, torch.float32, "cuda")
    backend = plant(kind, where=where, site=SITES[name])
    verdict = torchparity.check(model, inputs, backend=backend, train=True)
    assert backend.planted is not None
    assert verdict.status is Status.DIFFERS, verdict.reasons
