"""How large a fault's effect is, measured apart from the oracle that is being measured.

The noise here is the plain one: every float result times (1 + u), u uniform within half a unit of
its dtype. The effect is the largest distance of a candidate from float64 in units of

    sqrt(sigma^2 + mean sigma^2) + eps / 2 * (|R| + rms R)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import Leaf
from torchparity.run.mode import Watch
from torchparity.run.operators import Traits, float_tensors
from torchparity.run.reference import NeedsPlainKernels, Reference, plain_kernels
from torchparity.run.step import Runner

RUNS = 6


class PlainNoise(Watch):
    """Multiplies every float result by 1 + u."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def operate(self, func: Callable[..., Any], traits: Traits, args: Any, kwargs: Any) -> Any:
        outputs = func(*args, **kwargs)
        if traits.view or traits.random or traits.exact:
            return outputs
        for tensor in float_tensors(outputs):
            if tensor.numel() and not tensor.is_complex():
                half = torch.finfo(tensor.dtype).eps / 2
                drawn = torch.rand(tensor.shape, generator=self.generator, dtype=torch.float64)
                moved = tensor.double() * (1 + half * (2 * drawn - 1).to(tensor.device))
                tensor.copy_(moved)
        return outputs


class Yardstick:
    """The float64 truth and the plain noise of one model, and the effect of candidates against them."""

    def __init__(self, runner: Runner, model: Callable[..., Any]) -> None:
        self.runner = runner
        self.truth: dict[str, torch.Tensor] = {}
        self.exact: dict[str, Any] = {}
        self.squares: dict[str, torch.Tensor] = {}
        self._measure_truth(model)
        for run in range(RUNS):
            noise = PlainNoise(run)
            runner.run(model, self._add_noise, mode=lambda noise=noise: noise)

    def _measure_truth(self, model: Callable[..., Any]) -> None:
        try:
            reference = Reference()
            self._run_reference(model, reference)
        except NeedsPlainKernels:
            with plain_kernels():
                self._run_reference(model, Reference(plain=True))

    def _run_reference(self, model: Callable[..., Any], reference: Reference) -> None:
        def consume(leaf: Leaf) -> None:
            if not isinstance(leaf.value, torch.Tensor):
                return
            value = reference.value(leaf.value)
            if value is None:
                self.exact[leaf.path] = leaf.value.clone()
            else:
                self.truth[leaf.path] = value.clone()

        self.runner.run(model, consume, mode=lambda: reference)

    def _add_noise(self, leaf: Leaf) -> None:
        if leaf.path in self.truth and leaf.value is not None:
            square = (leaf.value.double() - self.truth[leaf.path]).square()
            held = self.squares.get(leaf.path)
            self.squares[leaf.path] = square if held is None else held + square

    def effect(self, candidate: Callable[..., Any]) -> float:
        """Return the largest distance of a candidate from the truth, in noise units; infinite where it is plain."""
        worst = [0.0]
        seen: set[str] = set()

        def consume(leaf: Leaf) -> None:
            seen.add(leaf.path)
            worst[0] = max(worst[0], self._effect(leaf))

        with torchapi.patched_config({"inductor.fallback_random": True}):
            ending = self.runner.run(candidate, consume)
        if ending.failure is not None:
            return math.inf
        return worst[0]

    def _effect(self, leaf: Leaf) -> float:
        value = leaf.value
        if not isinstance(value, torch.Tensor | None):
            return 0.0
        if leaf.path in self.exact:
            return 0.0 if torch.equal(value, self.exact[leaf.path]) else math.inf
        truth = self.truth.get(leaf.path)
        if truth is None or value is None:
            return math.inf if (truth is None) != (value is None) else 0.0
        if value.shape != truth.shape:
            return math.inf
        variance = self.squares[leaf.path] / RUNS
        half = torch.finfo(value.dtype).eps / 2
        allowance = (variance + variance.mean()).sqrt()
        allowance += half * (truth.abs() + truth.square().mean().sqrt())
        distance = (value.double() - truth).abs()
        ratio = torch.where(distance == 0, 0.0, distance / allowance)
        return float(torch.nan_to_num(ratio, nan=math.inf).max()) if ratio.numel() else 0.0
