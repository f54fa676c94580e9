"""A failure that needs fusion goes away when it is looked at: it is found in a short stretch of the graph."""

from __future__ import annotations

import sys

import pytest
import torch

import torchparity
from torchparity.execute.pool import Pool

BACKEND = '''
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd


def fused_only(graph_module, inputs):
    """Wrong in `sin` only where neither it nor what uses it is an output."""
    outputs = set(graph_module.graph.output_node().all_input_nodes)
    for node in list(graph_module.graph.nodes):
        if "aten.sin." in str(node.target) and not ({node, *node.users} & outputs):
            users = list(node.users)
            with graph_module.graph.inserting_after(node):
                wrong = graph_module.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.5))
            for user in users:
                user.replace_input_with(node, wrong)
    graph_module.recompile()
    return make_boxed_func(graph_module.forward)


hiding = aot_autograd(fw_compiler=fused_only)
def hides_when_looked_at(graph_module, inputs, **options): return hiding(graph_module, inputs)
'''


class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(40):
            x = torch.tanh(x) * 1.5 if place != 23 else torch.cos(torch.sin(x) + 0.5)
        return x


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    (folder / "hiding_backend.py").write_text(BACKEND)
    sys.path.insert(0, str(folder))
    import hiding_backend

    yield hiding_backend.hides_when_looked_at
    sys.path.remove(str(folder))
    del sys.modules["hiding_backend"]


def test_what_needs_fusion_is_found_in_a_stretch_of_the_graph(backend, tmp_path):
    torch.manual_seed(0)
    cases = torchparity.capture(Chain(), (torch.randn(4, 3),), backend=backend)
    case = next(case for case in cases if case.level == "aot")
    with Pool(workers=1, compilers=False) as pool:
        small = torchparity.minify(case, pool=pool, out=tmp_path / "small")
    assert small.compute_nodes == 3
    assert small.reproduced == (3, 3)
    sizes = [entry["operations"] for entry in small.log if entry["event"] == "asked"]
    searched = sizes[sizes.index(case.compute_nodes) :]
    # The taps, two ways of cutting it into stretches, and the whole; then only what is in one stretch.
    assert sum(size > 16 for size in searched) <= 4
