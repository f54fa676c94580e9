"""A model whose dropouts drop nothing, for as long as somebody looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from torchparity.run.subject import Subject, owned_modules

# What is in a module's name for its probability: `attention_dropout`, `drop_prob`, `layerdrop`; a dropout's own is `p`.
DROPS = "drop"


def dropouts_of(subject: Subject) -> list[tuple[torch.nn.Module, str, float]]:
    """Return the probabilities with which the modules of a model drop something: whose, by which name, how much."""
    found = []
    for root in owned_modules(subject.model).values():
        for module in root.modules():
            drops = DROPS in type(module).__name__.lower()
            for name, value in vars(module).items():
                named = DROPS in name.lower() or (drops and name == "p")
                if named and isinstance(value, float) and 0.0 < value < 1.0:
                    found.append((module, name, value))
    return found


@contextlib.contextmanager
def without_dropout(subject: Subject, seed: int) -> Iterator[Subject]:
    """Yield a subject whose modules drop nothing; they drop again afterwards."""
    found = dropouts_of(subject)
    for module, name, _ in found:
        setattr(module, name, 0.0)
    try:
        yield subject
    finally:
        for module, name, value in found:
            setattr(module, name, value)
