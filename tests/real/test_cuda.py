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
    """Where padding a product to a width that suits the device is faster, inductor returns a part of the padded one."""
    model, inputs = make(name, dtype, "cuda")
    verdict = torchparity.check(model, inputs, train=True, ignore=["stride"])
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    if name == "transformer":  # Its attention has other kernels in float64, which are more operations.
        assert verdict.compiled is not None and verdict.compiled.share == 1.0


@pytest.mark.parametrize("name", MODELS)
def test_with_tf32_allowed_it_is_same(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    model, inputs = make(name, torch.float32, "cuda")
    verdict = torchparity.check(model, inputs, train=True, ignore=["stride"])
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    assert verdict.environment["tf32_products"]


def test_a_graph_is_recorded_and_replayed():
    model, inputs = make("transformer", torch.float32, "cuda")
    verdict = torchparity.check(model, inputs, mode="reduce-overhead")
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    assert sum(run.name.startswith("inductor") for run in verdict.runs) == 8


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_training_is_replayed_too(mode):
    model, inputs = make("transformer", torch.float32, "cuda")
    verdict = torchparity.check(model, inputs, mode=mode, train=True)
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)


def test_a_graph_of_ones_own_that_reads_old_inputs_differs():
    """Recorded by hand, and never given the new inputs: what a careless backend does with CUDA graphs."""

    def backend(graph_module, inputs):
        recorded = {}

        def run(*args):
            if not recorded:
                graph_module(*args)
                torch.cuda.synchronize()
                recorded["graph"], recorded["args"] = torch.cuda.CUDAGraph(), args
                with torch.cuda.graph(recorded["graph"]):
                    recorded["outputs"] = graph_module(*args)
            recorded["graph"].replay()
            return [one.clone() for one in recorded["outputs"]]

        return run

    x = torch.randn(64, device="cuda")
    verdict = torchparity.check(torch.sin, (x,), backend=backend, config={"inductor.triton.cudagraphs": True})
    assert verdict.status is Status.DIFFERS


SOURCE = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(source, target, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, tl.load(source + places, mask=places < count) * 2)

def backend(graph_module, inputs):
    def run(*args):
        x = args[-1]
        target = torch.empty_like(x)
        double[(1,)](x, target, x.numel(), BLOCK=128)
        return (target,)
    return run
"""


def test_a_kernel_that_writes_past_its_tensor_differs(tmp_path, monkeypatch):
    (tmp_path / "careless.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import careless  # type: ignore[import-not-found]

    verdict = torchparity.check(lambda x: x * 2, (torch.randn(100, device="cuda"),), backend=careless.backend)

    assert verdict.kind == "out_of_bounds", torchparity.report.terminal.plain_text(verdict)
    assert "112 bytes after it" in verdict.leaves[0].mismatches[0].detail
    assert "target of careless.py" in verdict.leaves[0].path


def test_inductor_stays_inside():
    model, inputs = make("convnet", torch.float32, "cuda")
    verdict = torchparity.check(model, inputs, train=True, ignore=["stride"])  # Padded products, as above.
    assert verdict.status is Status.SAME, torchparity.report.terminal.plain_text(verdict)
    (zoned,) = [run for run in verdict.runs if "between red zones" in run.name]
    assert zoned.ending == "returned", zoned


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


class Dropping(torch.nn.Module):
    """Attention whose fused kernel draws its own mask: float64 has no such kernel, and plain ones draw another."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x):
        heads = [part.view(2, 8, 4, 8).transpose(1, 2) for part in self.inner(x).chunk(3, -1)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, dropout_p=0.2 if self.training else 0.0)
        return self.outer(mixed.transpose(1, 2).reshape(2, 8, 32))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, Status.SAME), (1.001, Status.DIFFERS)])
def test_attention_that_drops_is_judged_though_float64_draws_another_mask(factor, expected):
    def backend(graph_module, inputs):
        return lambda *args: tuple(result * factor for result in graph_module(*args))

    torch.manual_seed(0)
    verdict = torchparity.check(Dropping().cuda(), (torch.randn(2, 8, 32, device="cuda"),), backend=backend, train=True)
    assert verdict.status is expected, torchparity.report.terminal.plain_text(verdict)
