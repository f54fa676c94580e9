"""Find out, by asking it, whether a backend draws the random numbers that eager draws."""

from __future__ import annotations

import torch

from torchparity.run.recipe import Recipe
from torchparity.run.state import RandomState


def sample(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Draw random numbers in the ways that models do."""
    dropped = torch.nn.functional.dropout(values, 0.5, training=True)
    return dropped, torch.rand_like(values), torch.randn_like(values), torch.bernoulli(values)


def draws_eager_numbers(recipe: Recipe, device: torch.device) -> bool:
    """Compile a function that only draws, and see whether its numbers are eager's."""
    before = RandomState()
    seeded = RandomState.seeded(20)
    values = torch.full((64,), 0.5, device=device)
    try:
        seeded.restore()
        expected = sample(values)
        seeded.restore()
        with recipe.active(), torch.no_grad():
            actual = recipe.build(sample)(values)
        return all(torch.equal(left, right) for left, right in zip(expected, actual, strict=True))
    except Exception:  # noqa: BLE001 - a backend that cannot even do this does not draw eager's numbers
        return False
    finally:
        before.restore()
