"""Integers and bools: eager's values at one leaf, and what noise, or a tie, makes of them.

A quantity (how many values lie over zero) may be any number near those that noise makes of it. An index is no quantity:
it may be another only where noise gave that very one, or where the values that it chooses between are a tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# As many roundings apart two values are a tie.
TIE = 8.0


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where integers come from: they are indices, and, where that is known, they choose among `values` along `axis`.

    `error` is how far the values lie from float64. `first` tells whether the first of equal ones must be chosen.
    """

    values: torch.Tensor | None = None
    axis: int = 0
    error: float = 0.0
    first: bool = False


class ExactBaseline:
    """Eager's values at an integer or bool leaf, and where the noise flips them."""

    def __init__(self, eager: torch.Tensor, origin: Origin | None = None) -> None:
        self.eager = eager.detach()
        self.dtype = eager.dtype
        self.shape = tuple(eager.shape)
        self.origin = origin
        self.seen: list[torch.Tensor] = []
        self.samples = 0

    def add(self, sample: torch.Tensor, *, amplitude: float = 1.0) -> None:
        """Count one noise run (of any amplitude: a flip is a flip)."""
        self.samples += 1
        values = sample.detach()
        if bool((values != self.eager).any()) and not any(torch.equal(values, held) for held in self.seen):
            self.seen.append(values.clone())

    def wrong(self, candidate: torch.Tensor) -> torch.Tensor:
        """Tell where a candidate is another number than eager, and nothing explains it."""
        values = candidate.detach()
        wrong = values != self.eager
        for held in self.seen:
            wrong &= values != held
        if not bool(wrong.any()):
            return wrong
        if self.origin is not None:
            return wrong & ~self._tied(values, self.origin)
        return wrong & ~self._near(values)

    def _near(self, candidate: torch.Tensor) -> torch.Tensor:
        """Tell where a quantity lies among those that noise makes of it, or as far outside as these lie apart."""
        if not self.seen or self.dtype == torch.bool:
            return torch.zeros_like(candidate, dtype=torch.bool)
        runs = torch.stack([signed(entry) for entry in (self.eager, *self.seen)])
        differ = runs.amin(0) < runs.amax(0)
        least, most, values = runs.amin(0).double(), runs.amax(0).double(), signed(candidate).double()
        spread = most - least  # As integers these may be further apart than one can say.
        return differ & (values >= least - spread) & (values <= most + spread)

    def _tied(self, candidate: torch.Tensor, origin: Origin) -> torch.Tensor:
        """Tell where an index chooses a value that rounding cannot tell from the one that eager chose."""
        values = origin.values
        nowhere = torch.zeros_like(candidate, dtype=torch.bool)
        if values is None or self.dtype == torch.bool:
            return nowhere
        axis, length = origin.axis, values.shape[origin.axis] if values.dim() else 1
        lost = self.eager.dim() == values.dim() - 1
        chosen = [signed(entry).unsqueeze(axis) if lost else signed(entry) for entry in (self.eager, candidate)]
        fits = chosen[0].dim() == values.dim() and all(
            wanted <= held
            for place, (wanted, held) in enumerate(zip(chosen[0].shape, values.shape, strict=True))
            if place != axis
        )
        if not fits:
            return nowhere
        inside = (chosen[1] >= 0) & (chosen[1] < length)
        eager, other = (values.gather(axis, index.clamp(0, max(0, length - 1))).double() for index in chosen)
        allowed = TIE * origin.error
        tied = inside & ((other - eager).abs() <= allowed)
        if allowed == 0.0 and origin.first:
            return nowhere
        return tied.squeeze(axis) if lost else tied


def signed(values: torch.Tensor) -> torch.Tensor:
    """Return integers in a dtype that can be ordered and subtracted (torch does little with unsigned ones)."""
    return values.detach() if values.dtype == torch.bool else values.detach().to(torch.int64)
