"""The real compiler: right models are SAME, and its known ways of being different are seen."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import MODELS, make
from torch import nn

import torchparity
from torchparity import Status


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_a_small_network_with_dropout_is_same(train):
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4))
    verdict = torchparity.check(model, (torch.randn(8, 16),), train=train)
    assert verdict.status is Status.SAME, verdict.reasons
    assert "inductor.fallback_random" in verdict.recipe["config"] or not train


def test_inductor_with_its_own_random_numbers_is_unknown_not_wrong():
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5))
    verdict = torchparity.check(model, (torch.randn(32, 16),), train=True, config={"inductor.fallback_random": False})
    assert verdict.status is Status.UNKNOWN
    assert any("random numbers" in reason for reason in verdict.reasons)


def test_batch_norm_training_steps_are_same():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    verdict = torchparity.check(model, (torch.randn(4, 3, 8, 8),), train=True, steps=2, optimizer="adamw")
    assert verdict.status is Status.SAME, verdict.reasons
    assert "call[1].buffer.1.running_var" in {leaf.path for leaf in verdict.leaves}


def test_dynamic_shapes_and_recompilation_are_same():
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))
    sets = [(torch.randn(size, 8),) for size in (2, 5, 9)]
    verdict = torchparity.check(model, input_sets=sets, backward=True)
    assert verdict.status is Status.SAME, verdict.reasons


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(MODELS))
def test_no_false_alarm(name, dtype):
    model, inputs = make(name, dtype)
    verdict = torchparity.check(model, inputs, train=True)
    assert verdict.status is Status.SAME, verdict.reasons
