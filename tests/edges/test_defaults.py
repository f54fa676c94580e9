"""A user's file that changes torch's defaults: device, dtype, gradients, determinism. Our own tensors have none."""

from __future__ import annotations

import pytest

from warm import command_line

DEFAULTS = {
    "device": 'torch.set_default_device("meta")',
    "float64": "torch.set_default_dtype(torch.float64)",
    "bfloat16": "torch.set_default_dtype(torch.bfloat16)",
    "no gradients": "torch.set_grad_enabled(False)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "flushed": "torch.set_flush_denormal(True)",
}
DEFAULTS["all"] = "; ".join(line for name, line in DEFAULTS.items() if name != "float64")
ALONE = [pytest.param(name, marks=[pytest.mark.slow] if name != "all" else []) for name in DEFAULTS]
MODEL = """
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo import register_backend
from functorch.compile import make_boxed_func

{default}

def slightly(graph, inputs):
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.tanh.default:
            with graph.graph.inserting_after(node):
                more = graph.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.01))
            node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)
    graph.recompile()
    return make_boxed_func(graph.forward)

register_backend(aot_autograd(fw_compiler=slightly), name="slightly")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8, device="cpu", dtype=torch.float32)
        self.second = torch.nn.Linear(8, 8, device="cpu", dtype=torch.float32)
        self.norm = torch.nn.LayerNorm(8, device="cpu", dtype=torch.float32)

    def forward(self, x):
        return torch.tanh(self.second(torch.relu(self.norm(self.first(x))))).sum(-1), 7.5, 3

def make():
    torch.manual_seed(0)
    with torch.enable_grad():
        return Model(), (torch.randn(64, 8, device="cpu", dtype=torch.float32),)
"""


def ask(folder, *words):
    ended = command_line(folder, *words, "-q", env={"COLUMNS": "200"})
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("default", ALONE)
def test_a_clean_model_is_the_same_whatever_the_defaults_are(tmp_path, default):
    (tmp_path / "model.py").write_text(MODEL.format(default=DEFAULTS[default]))
    code, told = ask(tmp_path, "check", "model.py:make", "--backend", "aot_eager", "--train", "--exact", "--no-isolate")
    assert code == 0, told


@pytest.mark.slow
@pytest.mark.parametrize("default", ["device", "bfloat16"])
def test_a_fault_is_found_and_made_small_whatever_the_defaults_are(tmp_path, default):
    (tmp_path / "model.py").write_text(MODEL.format(default=DEFAULTS[default]))
    code, told = ask(tmp_path, "diagnose", "model.py:make", "--backend", "slightly", "--out", "found")
    lines = {line.split()[0]: line for line in told.splitlines() if line.strip()}
    assert code == 1, told
    assert "tanh" in lines["where"], told
    assert "(1 operation of 6, reproduced 3 of 3)" in lines["script"], told
