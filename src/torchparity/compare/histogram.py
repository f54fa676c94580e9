"""How the errors of one leaf are spread: eager's and the candidate's, against the same truth."""

from __future__ import annotations

import torch

from torchparity.compare.statistics import FloatBaseline
from torchparity.records import Histogram

# Of a larger leaf, this many elements, evenly spaced, are counted.
SAMPLE = 1 << 16
# Errors below this share of the largest are counted with the smallest bin: a page has only so much room.
BINS = 48


def error_histogram(baseline: FloatBaseline, candidate: torch.Tensor) -> Histogram | None:
    """Count the errors of a candidate, and eager's own, by powers of two; None where there is nothing to count."""
    if not baseline.layout.total:
        return None
    step = max(1, baseline.layout.total // SAMPLE)
    places = torch.arange(0, baseline.layout.total, step, device=baseline.device)
    eager, other = (exponents(baseline.distance(values, places)) for values in (baseline.eager, candidate))
    both = torch.cat([eager, other])
    exact = (len(places) - len(eager), len(places) - len(other))
    if not len(both):
        return Histogram(first=0, eager=(), candidate=(), exact=exact)
    last = int(both.max())
    first = max(int(both.min()), last - BINS + 1)

    def counts(found: torch.Tensor) -> tuple[int, ...]:
        bins = torch.bincount(found.clamp(min=first) - first, minlength=last - first + 1)
        return tuple(int(count) for count in bins)

    return Histogram(first=first, eager=counts(eager), candidate=counts(other), exact=exact)


def exponents(errors: torch.Tensor) -> torch.Tensor:
    """Return the power of two at or below each error that is neither zero nor infinite."""
    counted = errors[(errors > 0) & (errors < torch.finfo(errors.dtype).max)]
    return torch.frexp(counted)[1].long() - 1
