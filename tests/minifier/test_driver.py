"""Who goes on with a minification asks the same questions, with however many workers."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity.minifier.suspects import PIECE


class Chain(torch.nn.Module):
    def forward(self, x):
        for place in range(2 * PIECE):
            x = x + 0.25 * place
        return torch.sin(x)


@pytest.mark.slow
def test_other_workers_ask_nothing_again(backends, tmp_path):
    cases = torchparity.capture(Chain(), (torch.randn(4, 3),), backend=backends.wrong_sine)
    case = next(case for case in cases if case.level == "aot")
    small = torchparity.minify(case, out=tmp_path / "small", workers=3)
    assert small.compute_nodes == 1
    assert small.reproduced == (3, 3)
    again = torchparity.resume_minify(tmp_path / "small", workers=1)
    assert again.queries == small.queries
    assert again.script == small.script
