"""How the errors of one leaf are spread: eager's and the candidate's, against the same truth."""

from __future__ import annotations

import torch

from torchparity.compare.statistics import FloatBaseline
from torchparity.records import Histogram

# Of a larger leaf, this many elements, evenly spaced, are counted.
SAMPLE = 1 << 16
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
    eager, other = powers(errors)
    exact = (eager.pop(), other.pop())
    found = [place for place, counts in enumerate(zip(eager, other, strict=True)) if any(counts)]
    if not found:
        return Histogram(first=0, eager=(), candidate=(), exact=exact)
    last = found[-1]
    first = max(found[0], last - BINS + 1)

    def counts(bins: list[int]) -> tuple[int, ...]:
        return sum(bins[: first + 1]), *bins[first + 1 : last + 1]

    return Histogram(first=first + LOWEST_POWER, eager=counts(eager), candidate=counts(other), exact=exact)


def powers(errors: torch.Tensor) -> list[list[int]]:
    """Count, for each row, the errors by the power of two at or below them; last, those that are zero or infinite."""
    counted = (errors > 0) & (errors < torch.finfo(errors.dtype).max)
    bins = torch.where(counted, torch.frexp(errors)[1].long() - 1 - LOWEST_POWER, POWERS)
    bins += torch.arange(len(errors), device=errors.device)[:, None] * (POWERS + 1)
    counts = torch.bincount(bins.reshape(-1), minlength=len(errors) * (POWERS + 1))
    found: list[list[int]] = counts.reshape(len(errors), -1).tolist()  # At once: a device is waited for only here.
    return found
