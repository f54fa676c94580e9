"""The sums of a leaf: what a bias or a wrong scale moves, and no single element shows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchparity.compare.matrices import Sums
from torchparity.compare.statistics import PROFILE_TERMS, FloatBaseline

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
    names, scores = aggregate_scores(baseline, sums)
    return worst_of(baseline, names, scores.tolist())


def aggregate_scores(baseline: FloatBaseline, sums: Sums) -> tuple[list[str], torch.Tensor]:
    """Return the names and scores of all aggregates that mean something, without waiting for the device."""
    if baseline.layout.total < PROFILE_TERMS or not baseline.samples:
        return [], torch.empty(0, dtype=torch.float64, device=baseline.device)
    units, vectors = baseline.aggregate_units(), sums.vectors()
    names = [name for name in vectors if name in units]
    ratios = torch.cat([vectors[name] for name in names]).div_(torch.cat([units[name] for name in names])).abs_()
    worst = torch.stack([part.max() for part in ratios.split([len(vectors[name]) for name in names])])
    return names, torch.nan_to_num_(worst, nan=0.0, posinf=math.inf)


def worst_of(baseline: FloatBaseline, names: list[str], scores: list[float]) -> Aggregate:
    """Return the worst of some aggregates: a mean, a scale, a row's or a column's."""
    score = max(scores, default=0.0)
    if score <= 0:
        return Aggregate()
    alike = {"row": baseline.layout.rows, "column": baseline.layout.columns}
    lone = [found for name, found in zip(names, scores, strict=True) if alike.get(name.split()[0], 1) < SHARING]
    return Aggregate(names[scores.index(score)], score, max(lone, default=0.0))
