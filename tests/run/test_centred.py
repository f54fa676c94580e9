"""Norms of rows that are large beside their spread: what an error of the mean leaves is noise, a fault is not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import torchparity
from torchparity import Status
from torchparity.run import noise


def chain(rows):
    """Add up numbers one after the other."""
    total = rows[..., 0]
    for place in range(1, rows.shape[-1]):
        total = total + rows[..., place]
    return total


def running(x, axes):
    """Return mean and variance over axes, added up in another order than eager's; right, and rounded otherwise."""
    rows = x.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
    mean = chain(rows) / rows.shape[-1]
    variance = chain((rows - mean[..., None]) ** 2) / rows.shape[-1]
    shape = [1 if axis in [entry % x.dim() for entry in axes] else size for axis, size in enumerate(x.shape)]
    return mean.reshape(shape), variance.reshape(shape)


def layer(x):
    return F.layer_norm(x, x.shape[-1:])


def layer_otherwise(x):
    mean, variance = running(x, (-1,))
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def group(x):
    return F.group_norm(x, 2)


def group_otherwise(x):
    parts = x.unflatten(1, (2, -1))
    mean, variance = running(parts, tuple(range(2, parts.dim())))
    return ((parts - mean) * torch.rsqrt(variance + 1e-5)).flatten(1, 2)


def batch(x):
    return F.batch_norm(x, None, None, training=True)


def batch_otherwise(x):
    mean, variance = running(x, (0, *range(2, x.dim())))
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def spread(x):
    return x.std(-1), x.var(-1)


def spread_otherwise(x):
    _, variance = running(x, (-1,))
    variance = variance.squeeze(-1) * (x.shape[-1] / (x.shape[-1] - 1))
    return variance.sqrt(), variance


PAIRS = [(layer, layer_otherwise), (group, group_otherwise), (batch, batch_otherwise), (spread, spread_otherwise)]


def judged(model, candidate, x):
    def backend(graph_module, inputs):
        def run(*inputs):
            found = candidate(*inputs)
            return found if isinstance(found, tuple) else (found,)

        return run

    return torchparity.check(model, (x,), backend=backend, no_grad=True)


def alike(value, *, off=0.0):
    torch.manual_seed(0)
    return torch.full((3, 4, 7), value) + off * torch.randn(3, 4, 7)


@pytest.mark.parametrize("x", [alike(1000.1), alike(12345.678), alike(0.1), alike(1e4, off=1e-3), alike(1e4, off=1.0)])
@pytest.mark.parametrize(("model", "otherwise"), PAIRS, ids=[model.__name__ for model, _ in PAIRS])
def test_another_right_way_to_the_mean_is_the_same(model, otherwise, x):
    verdict = judged(model, otherwise, x)
    assert verdict.status is Status.SAME, verdict.reasons


def test_without_it_that_was_an_alarm(monkeypatch):
    monkeypatch.setattr(noise, "move_by_means", lambda *given: None)
    assert judged(layer, layer_otherwise, alike(1000.1)).status is Status.DIFFERS


@pytest.mark.parametrize("x", [alike(1000.1), alike(1e4, off=1.0), alike(0.0, off=1.0)])
@pytest.mark.parametrize(("model", "otherwise"), PAIRS[:3], ids=[model.__name__ for model, _ in PAIRS[:3]])
def test_a_mean_that_is_not_taken_away_is_seen(model, otherwise, x):
    verdict = judged(model, lambda x: otherwise(x) + x.mean() * 1e-2 + 1e-2, x)
    assert verdict.status is Status.DIFFERS


@pytest.mark.parametrize("size", [1e-4, 1e-2])
@pytest.mark.parametrize(("model", "otherwise"), PAIRS, ids=[model.__name__ for model, _ in PAIRS])
def test_of_ordinary_rows_a_small_error_is_seen_as_before(model, otherwise, size):
    def scaled(x):
        found = otherwise(x)
        return tuple(part * (1 + size) for part in found) if isinstance(found, tuple) else found * (1 + size)

    assert judged(model, otherwise, alike(0.5, off=1.0)).status is Status.SAME
    assert judged(model, scaled, alike(0.5, off=1.0)).status is Status.DIFFERS
