"""The sums of a leaf: what a bias or a wrong scale moves, and no single element shows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchparity.compare.matrices import Sums
from torchparity.compare.statistics import FloatBaseline

# So many numbers share what is known of the noise around them; fewer are each on their own.
SHARING = 256


@dataclass(frozen=True)
class Aggregate:
    """The aggregate that is worst, and how bad the worst is of those that share their noise with few others."""

    name: str = ""
    score: float = 0.0
    lone: float = 0.0


def judge_aggregates(baseline: FloatBaseline, sums: Sums) -> Aggregate:
    """Return the aggregate that is worst."""
    return worst_of(baseline, dict(zip(baseline.scored, aggregate_scores(baseline, sums).tolist(), strict=True)))


def aggregate_scores(baseline: FloatBaseline, sums: Sums) -> torch.Tensor:
    """Return the scores of all aggregates that mean something, without waiting for the device."""
    names = baseline.scored
    if not names:
        return torch.empty(0, dtype=torch.float64, device=baseline.device)
    units, vectors = baseline.aggregate_units(), sums.vectors()
    ratios = torch.cat([vectors[name] for name in names]).div_(torch.cat([units[name] for name in names])).abs_()
    worst = torch.stack([part.max() for part in ratios.split([len(vectors[name]) for name in names])])
    return torch.nan_to_num_(worst, nan=0.0, posinf=math.inf)


def worst_of(baseline: FloatBaseline, scores: dict[str, float]) -> Aggregate:
    """Return the worst of some aggregates: a mean, a scale, a row's or a column's."""
    name = max(scores, key=lambda name: scores[name], default="")
    if not name or scores[name] <= 0:
        return Aggregate()
    alike = {"row": baseline.layout.rows, "column": baseline.layout.columns}
    lone = [found for name, found in scores.items() if alike.get(name.split()[0], 1) < SHARING]
    return Aggregate(name, scores[name], max(lone, default=0.0))
