"""A leaf that comes close to differing is looked at on other data, where a wrong result may be less well hidden."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from torchparity import Status, check
from torchparity.faults import plant
from torchparity.judge.otherwise import CLOSE_LOOKS, CLOSE_SHARE


class Small(torch.nn.Module):
    """Convolutions, whose smallest results a compiler may lose without anybody seeing it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16)
        self.deep, self.norm2 = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 2)
        return self.head(functional.relu(x + self.norm2(self.deep(x))).mean((2, 3)))


def small(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return Small().to(dtype), (torch.randn(4, 3, 12, 12, dtype=dtype),)


def looks(verdict):
    """Return how often a model was looked at on other data."""
    return sum(run.name == "eager" for run in verdict.runs) - 1


def test_values_that_are_lost_are_found_though_their_own_data_hide_them():
    model, inputs = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    verdict = check(model, inputs, backend=plant("flushed", where="forward", site=0), train=True)

    assert verdict.status is Status.DIFFERS
    assert "close to differing on its own data" in verdict.reasons[0]
    assert 1 <= looks(verdict) <= CLOSE_LOOKS
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_compiler_that_is_right_is_not_looked_at_again():
    model, inputs = small()

    verdict = check(model, inputs, backend="aot_eager_decomp_partition", train=True)

    assert verdict.status is Status.SAME
    assert looks(verdict) == 0


def shifted(units):
    """Return a backend whose every result is off by so many units in its last place."""

    def backend(graph_module, inputs):
        def run(*args):
            return [value + value.abs().clamp(min=1e-3) * (units * 2.0**-23) for value in graph_module(*args)]

        return run

    return backend


def close_ones(dtype=torch.float32):
    """Yield verdicts on results that come close, and no closer on any data."""
    x = torch.linspace(0.5, 1.5, 64, dtype=dtype)
    for units in range(1, 24):
        verdict = check(torch.sin, (x,), backend=shifted(units * torch.finfo(dtype).eps * 2.0**23))
        score = max(max(leaf.score, leaf.aggregate_score) for leaf in verdict.leaves)
        yield verdict, score


def test_what_stays_close_on_all_data_is_no_difference():
    found = [
        verdict
        for verdict, score in close_ones()
        if CLOSE_SHARE * 8 < score <= 8 and verdict.status is Status.SAME and looks(verdict)
    ]

    assert found, "nothing came close"
    assert all(looks(verdict) == CLOSE_LOOKS for verdict in found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_closeness_is_usual(dtype):
    assert not any(looks(verdict) for verdict, _ in close_ones(dtype))


def test_a_tolerance_of_the_users_own_is_his_word():
    verdict = check(torch.sin, (torch.linspace(0.5, 1.5, 64),), backend=shifted(80), tolerance=1.5e-5)

    assert verdict.status is Status.SAME
    assert max(leaf.score for leaf in verdict.leaves) > CLOSE_SHARE * 8
    assert looks(verdict) == 0


def test_data_that_the_model_refuses_tell_nothing():
    x = torch.linspace(0.5, 1.5, 64)

    def touchy(values):
        if not torch.compiler.is_compiling() and values[0] != 0.5:
            raise ValueError("not my data")
        return torch.sin(values)

    kept = [check(touchy, (x,), backend=shifted(units)) for units in range(1, 24)]

    assert any(looks(verdict) for verdict in kept)
    assert not any(verdict.status is Status.DIFFERS and "close" in verdict.reasons[0] for verdict in kept)
