"""Autotuning: what kernels inductor may take for an operation, which it takes, and how to make it take another."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchparity.torchapi.door import lookup

SELECTOR = "torch._inductor.select_algorithm.AlgorithmSelectorCache"
SELECTED = "torch._inductor.select_algorithm.get_algorithm_selector_cache"
# Whatever was compiled before was compiled with the choice of then.
NO_CACHES = {"inductor.fx_graph_cache": False, "functorch.enable_autograd_cache": False}


@dataclass(frozen=True)
class Offer:
    """An operation to tune: what it is, the shapes it is for, and the kernels that may be taken."""

    kernel: str
    shapes: str
    choices: tuple[str, ...]


# The place of the choice that an offer is to take; nothing where it is tuned as usual.
Pick = Callable[[Offer], int | None]


@contextlib.contextmanager
def choosing(pick: Pick) -> Iterator[None]:
    """Let every operation that inductor would tune take the kernel that a function picks."""
    selector, filters = lookup(SELECTOR), lookup(SELECTED)().preprocessing_fns
    select = selector.__call__
    asked: list[tuple[str, Any]] = []

    @functools.wraps(select)
    def selected(self: Any, name: str, choices: Any, input_nodes: Any, *args: Any, **kwargs: Any) -> Any:
        asked[:] = [(name, input_nodes)]
        return select(self, name, choices, input_nodes, *args, **kwargs)

    def only(choices: list[Any]) -> list[Any]:
        (name, input_nodes), *_ = asked
        place = pick(offer_of(name, choices, input_nodes)) if len(choices) > 1 else None
        return choices if place is None else [choices[place]]

    selector.__call__ = selected
    filters.append(only)  # The last one: what others add or take away is done.
    try:
        yield
    finally:
        filters.remove(only)
        selector.__call__ = select


@contextlib.contextmanager
def heard_choices(hear: Callable[[Offer, str], None]) -> Iterator[None]:
    """Tell a function of every operation that inductor tunes, and of the kernel that was fastest."""
    savers = lookup(SELECTED)().feedback_saver_fns

    def save(timings: Any, name: str, input_nodes: Any, choices: Sequence[Any], *rest: Any) -> None:
        if timings:
            hear(offer_of(name, choices, input_nodes), label(min(timings, key=timings.__getitem__)))

    savers.append(save)
    try:
        yield
    finally:
        savers.remove(save)


def offer_of(name: str, choices: Sequence[Any], input_nodes: Sequence[Any]) -> Offer:
    """Return an offer as plain data."""
    shapes = ", ".join("x".join(map(str, node.get_size())) for node in input_nodes if hasattr(node, "get_size"))
    return Offer(name, shapes, tuple(map(label, choices)))


def label(choice: Any) -> str:
    """Return a choice's name with what it is made of; numbers that count choices are not part of it."""
    stem = str(choice.name).rstrip("0123456789").rstrip("_")
    told = " ".join(str(getattr(choice, "description", "") or "").split())
    return f"{stem} ({told})" if told else stem
