"""Whether eager gives the same twice, but for what rounding and atomics may change."""

from __future__ import annotations

import torch

from torchparity.compare.matrices import as_real
from torchparity.compare.statistics import FloatBaseline

# Roundings that a run may differ by where nothing tells how large its error is.
ROUNDINGS = 50.0
# Two eager runs may differ by this many times eager's own distance from float64.
REPEATABLE = 20.0


def repeats(baseline: FloatBaseline, again: torch.Tensor, *, beside_reference: bool) -> bool:
    """Tell whether a second eager run lies within rounding of the first.

    Where the second run is the one that the reference stands beside, its own error says how much rounding
    there is; else a generous number of roundings of the leaf's scale does.
    """
    values = as_real(again).reshape(baseline.layout.rows, baseline.layout.columns)
    apart, error, scale = 0.0, 0.0, 0.0
    for rows, columns in baseline.layout.blocks(baseline.device):
        first = baseline.eager[rows, columns].to(baseline.work)
        second = values[rows, columns].to(baseline.work)
        both = torch.isfinite(first) & torch.isfinite(second)
        if not bool((both | (first == second) | (first.isnan() & second.isnan())).all()):
            return False
        apart = max(apart, float((second - first).masked_fill(~both, 0.0).abs().max()))
        scale = max(scale, float(first.masked_fill(~both, 0.0).abs().max()))
        if beside_reference and baseline.has_reference:
            error = max(error, float(baseline.difference(values, rows, columns).abs().max()))
    roundings = 1.0 if beside_reference and baseline.has_reference else ROUNDINGS
    return apart <= REPEATABLE * (error + roundings * baseline.epsilon * scale)
