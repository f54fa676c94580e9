"""Real bugs of the installed PyTorch in small models, found and made small whatever level they live at.

`benchmarks/bugs.py` holds more of them, each in a model of more than 200 operations.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchparity
from torchparity.workers.pool import Pool


class Around(torch.nn.Module):
    """An operation on the stream, between layers."""

    def __init__(self, operation) -> None:
        super().__init__()
        self.before = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.after = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.operation = operation

    def forward(self, x):
        for layer in self.before:
            x = x + torch.tanh(layer(x))
        x = x + self.operation(x)
        for layer in self.after:
            x = x + torch.tanh(layer(x))
        return x


def scaled_quotient(h):
    return torch.addcdiv(h, h * 1e28, torch.full_like(h, 1e-14), value=1e-37) * 1e-5


def through_dropout(h):
    base = h * 2
    F.dropout(base, 0.5, training=False).add_(1)
    return base


def target_above_one(h):
    return F.binary_cross_entropy(torch.sigmoid(h), torch.sigmoid(h) + 1)


def scalar_cumsum(h):
    return torch.full_like(h.sum(), 0.5).cumsum(0)


def floor_division(h):
    return torch.round(h * 4) // 0.1


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=1) as pool:
        yield pool


BUGS = [
    pytest.param(scaled_quotient, "eager", "program", "nonfinite", "addcdiv", id="dynamo", marks=pytest.mark.slow),
    pytest.param(through_dropout, "aot_eager", "dynamo", "value", "dropout", id="in-place", marks=pytest.mark.slow),
    pytest.param(
        target_above_one,
        "aot_eager_decomp_partition",
        "dynamo",
        "accepts_invalid",
        "binary_cross_entropy",
        id="lost-check",
        # The run ends where the model itself raises.
        marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::torchparity.CaptureWarning")],
    ),
    pytest.param(scalar_cumsum, "inductor", "dynamo", "raises", "cumsum", id="raises", marks=pytest.mark.slow),
    pytest.param(floor_division, "inductor", "dynamo", "value", "//", id="lowering", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("operation", "backend", "level", "kind", "named"), BUGS)
def test_a_real_bug_ends_in_a_plain_script_of_at_most_three_operations(
    operation, backend, level, kind, named, pool, tmp_path
):
    torch.manual_seed(0)
    model = Around(operation).eval()
    case, verdict = torchparity.find_failing(model, (torch.randn(4, 8),), backend=backend, pool=pool)
    assert (case.level, verdict.kind) == (level, kind)
    small = torchparity.minify(case, out=tmp_path / "small", pool=pool, verdict=verdict)
    assert small.compute_nodes <= 3
    assert small.reproduced == (3, 3)
    assert small.signature.kind == kind
    assert small.script_is_plain
    assert named in small.script
    assert (tmp_path / "small" / "repro.py").read_text() == small.script
    assert small.script in (tmp_path / "small" / "issue.md").read_text()
    if operation is through_dropout:
        again = torchparity.minify(small.case, pool=pool)
        assert again.case.digest == small.case.digest


def test_where_dynamo_itself_is_wrong_the_models_own_calls_fail(pool):
    torch.manual_seed(0)
    model = Around(scaled_quotient).eval()
    case, verdict = torchparity.find_failing(model, (torch.randn(4, 8),), backend="eager", pool=pool)
    assert (case.level, verdict.kind) == ("program", "nonfinite")
    assert "addcdiv" in case.graph


def test_a_model_without_a_fault_is_refused(pool):
    with pytest.raises(torchparity.UsageError, match=r"no graph of sin fails by itself \(3 were judged\)"):
        torchparity.find_failing(torch.sin, (torch.randn(3),), backend="eager", pool=pool)
