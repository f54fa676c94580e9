"""A failure that needs fusion goes away when it is looked at: it is found in a short stretch of the graph."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity.workers.pool import Pool


class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(40):
            x = torch.tanh(x) * 1.5 if place != 23 else torch.cos(torch.sin(x) + 0.5)
        return x


@pytest.mark.slow
def test_what_needs_fusion_is_found_in_a_stretch_of_the_graph(backends, tmp_path):
    torch.manual_seed(0)
    cases = torchparity.capture(Chain(), (torch.randn(4, 3),), backend=backends.hides)
    case = next(case for case in cases if case.level == "aot")
    with Pool(workers=1, compilers=False) as pool:
        small = torchparity.minify(case, pool=pool, out=tmp_path / "small")
    assert small.compute_nodes == 3
    assert small.reproduced == (3, 3)
    sizes = [entry["operations"] for entry in small.log if entry["event"] == "asked"]
    searched = sizes[sizes.index(case.compute_nodes) :]
    # The taps, two ways of cutting it into stretches, and the whole; then only what is in one stretch.
    assert sum(size > 16 for size in searched) <= 4
