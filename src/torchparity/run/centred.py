"""What a mean that is a rounding off does to an operation that takes it away from its input, and never shows it.

Where a row's values are large beside their spread, or all the same, the last bit of their mean is all that is left when
it was taken away, and a division by the spread makes it large: any order of adding up is right, and each gives another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchparity import torchapi
from torchparity.run.operators import Traits

# Operations that give what is left, its mean and one over its spread.
NORMS = frozenset("native_layer_norm native_group_norm".split())
# Operations that give the spread itself, and whether that is squared.
SPREADS = {"var": True, "var_mean": True, "std": False, "std_mean": False}
# How many times its spread a mean is, from which on its error is what counts.
LITTLE = 8.0
Steps = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


def move_by_means(
    traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any, steps: Steps, amplitude: float
) -> None:
    """Move what an operation gives as far as errors of its means may; `steps(like, shape)` draws them.

    Sums of floats that are shorter than float32 are kept in that.
    """
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
        return
    finer = torch.float64 if args[0].dtype == torch.float64 else torch.float32
    unit = torch.finfo(finer).eps * amplitude
    if traits.name in SPREADS:
        _move_spread(traits.name, args, kwargs, outputs, steps, unit)
    elif (traits.name in NORMS or traits.by_channel) and not traits.name.endswith("backward"):
        _move_rest(traits, args, outputs, steps, unit)


def _move_rest(traits: Traits, args: tuple[Any, ...], outputs: Any, steps: Steps, unit: float) -> None:
    """Shift what is left of each row by an error of its mean, over its spread."""
    if not isinstance(outputs, tuple | list) or len(outputs) < 3 or not _plain(*outputs[:3], args[0]):
        return
    rest, mean, scale = outputs[:3]
    if not rest.numel() or mean.shape != scale.shape or not mean.numel():
        return
    weight = next((entry for entry in args[1:3] if isinstance(entry, torch.Tensor)), None)
    size = 1.0 + math.log2(max(1.0, rest.numel() / mean.numel())) / 4
    typical = mean.float().abs() * (size * unit)
    # Rows of the same numbers have the same error: one is drawn for all whose spread is little beside their mean.
    shared = steps(typical, (1,) * mean.dim()) * typical * (mean.float().abs() * scale.float() > LITTLE)
    shift = -(steps(typical, mean.shape) * typical + shared) * scale.float()
    mean.add_(shared.to(mean.dtype))
    scale.div_((1.0 + shift.square()).sqrt().to(scale.dtype))  # The spread has the square of it in it.
    if traits.name == "native_layer_norm":
        by_weight = 1.0 if weight is None else weight
    else:
        channels = rest.shape[1] if rest.dim() > 1 else rest.shape[0]
        lead = 1 if traits.by_channel else mean.shape[0]
        shift = shift.reshape(lead, -1).repeat_interleave(max(1, channels * lead // shift.numel()), 1)
        shift = shift.reshape(lead, channels, *[1] * (rest.dim() - 2))
        by_weight = 1.0 if weight is None else weight.reshape(1, channels, *[1] * (rest.dim() - 2))
    rest.add_((torch.nan_to_num_(shift, posinf=0.0, neginf=0.0) * by_weight).to(rest.dtype))


def _move_spread(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any, steps: Steps, unit: float
) -> None:
    """Let a spread be as large at least as what errors of the mean, and of each difference, leave."""
    spread = outputs[0] if isinstance(outputs, tuple | list) else outputs
    if not _plain(spread, args[0]) or not spread.numel() or args[0].is_complex():
        return
    given = args[1] if len(args) > 1 and not isinstance(args[1], bool) else kwargs.get("dim")
    axes = [given] if isinstance(given, int) else list(given or range(args[0].dim()))
    typical = args[0].detach().square().mean(axes).sqrt() if axes else args[0].detach().abs()
    if typical.numel() != spread.numel():
        return
    count = max(1.0, args[0].numel() / spread.numel())
    least = typical.reshape(spread.shape) * steps(spread, spread.shape) * ((1.0 + math.log2(count) / 4) * unit)
    least = torch.nan_to_num_(least.double(), posinf=0.0, neginf=0.0).square()
    spread.copy_(spread + least if SPREADS[name] else (spread.double().square() + least).sqrt())


def _plain(*values: Any) -> bool:
    return all(
        isinstance(value, torch.Tensor) and value.is_floating_point() and torchapi.in_memory(value) for value in values
    )
