"""How the errors of one leaf are spread: eager's and the candidate's, against the same truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchparity.compare.statistics import FloatBaseline
from torchparity.records import Histogram

# Of a larger leaf, this many elements, evenly spaced, are counted.
SAMPLE = 1 << 14
# Errors below this share of the largest are counted with the smallest bin: a page has only so much room.
BINS = 48
# The powers of two that a double may have: the least, and how many there are.
LOWEST_POWER, POWERS = -1074, 2098


def error_histogram(baseline: FloatBaseline, candidate: torch.Tensor) -> Histogram | None:
    """Count the errors of a candidate, and eager's own, by powers of two; None where there is nothing to count."""
    if not baseline.layout.total:
        return None
    places = slice(0, None, max(1, baseline.layout.total // SAMPLE))
    errors = torch.stack([baseline.distance(values, places) for values in (baseline.eager, candidate)])
    counted = powers(errors)
    bins = counted[:, :-1]
    exact = (int(counted[0, -1]), int(counted[1, -1]))
    found = np.flatnonzero(bins.any(axis=0))
    if not found.size:
        return Histogram(first=0, eager=(), candidate=(), exact=exact)
    last = int(found[-1])
    first = max(int(found[0]), last - BINS + 1)
    eager, other = ((int(row[: first + 1].sum()), *row[first + 1 : last + 1].tolist()) for row in bins)
    return Histogram(first=first + LOWEST_POWER, eager=eager, candidate=other, exact=exact)


def powers(errors: torch.Tensor) -> np.ndarray[Any, Any]:
    """Count, for each row, the errors by the power of two at or below them; last, those that are zero or infinite."""
    held = errors.cpu().numpy()  # At once: a device is waited for only here, and has little to do with so few.
    counted = (held > 0) & (held < np.finfo(held.dtype).max)
    bins = np.where(counted, np.frexp(held)[1] - 1 - LOWEST_POWER, POWERS)
    return np.stack([np.bincount(row, minlength=POWERS + 1) for row in bins])
