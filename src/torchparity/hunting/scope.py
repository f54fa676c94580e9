"""What a program has made so far, and which of it is of any use: every line has run in eager when it is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchparity.programs.script import FACTORY
from torchparity.run.target import as_subject

MOST_ELEMENTS = 4096
LARGEST = {True: 1.0e4, False: 2.0**24}
RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127), torch.int16: (-32768, 32767)}
WHOLE = (-(2.0**31), 2.0**31 - 1)


@dataclass
class Scope:
    """The values that a program has so far, and the lines that made them."""

    inputs: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    imports: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=dict)

    def run_again(self) -> None:
        """Run everything from the start."""
        self.namespace = {"torch": torch, "seen": [], "state": {}}
        for line in self.imports:
            exec(line, self.namespace)
        for name, text in self.inputs.items():
            exec(f"{name} = {text}", self.namespace)
        for line in self.lines:
            exec(line, self.namespace)
        self.refresh()

    def refresh(self) -> None:
        """Look up the tensors that there are now."""
        self.values = {name: value for name, value in self.namespace.items() if isinstance(value, torch.Tensor)}


class Undefined(Exception):
    """A line whose result eager does not define, or that is of no use here."""


def runs(text: str, *, backward: bool) -> bool:
    """Tell whether eager can run a program, call after call, and go backwards through it where that is asked."""
    namespace: dict[str, Any] = {}
    try:
        exec(text, namespace)
        subject = as_subject(namespace[FACTORY], FACTORY)
        for args, kwargs in subject.calls():
            found = subject.model(*args, **kwargs)
            results = found if isinstance(found, tuple) else (found,)
            floats = [part for part in results if isinstance(part, torch.Tensor) and part.requires_grad]
            if floats and backward:
                torch.autograd.backward([part.sum() for part in floats])
    except Exception:  # noqa: BLE001 - whatever eager has against it
        return False
    return True


def storage(value: torch.Tensor) -> int:
    """Return what tells a tensor's memory from another's."""
    return value.untyped_storage().data_ptr()


def end_of(value: torch.Tensor) -> int:
    """Return how many bytes of its storage lie before the end of a tensor's last element."""
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return int(value.storage_offset() + last + 1) * value.element_size() if value.numel() else 0


def refuse_unwritten(value: torch.Tensor, inputs: Collection[torch.Tensor], others: Collection[torch.Tensor]) -> None:
    """Raise for a view that reaches behind all that is in its memory: there may be more, which nobody has written."""
    place = storage(value)
    ends = [end_of(other) for other in others if storage(other) == place]
    if ends and end_of(value) > max(ends) and all(storage(given) != place for given in inputs):
        raise Undefined("unwritten")


def shares_elements(value: torch.Tensor) -> bool:
    """Tell whether two elements of a tensor lie at one place."""
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = (places[:, None] + torch.arange(size)[None] * stride).reshape(-1)
    return bool(places.unique().numel() != places.numel())


def refuse_useless(
    value: torch.Tensor, operands: Mapping[str, torch.Tensor], *, special: bool = False, most: int = MOST_ELEMENTS
) -> None:
    """Raise for what eager does not define, or what is too large to stay exact; `special` allows Inf and NaN."""
    if value.numel() > most or value.dim() > 6:
        raise Undefined("too large")
    if special:
        refuse_casts(value, operands)
        return
    if value.numel() == 0 or value.dtype is torch.bool:
        return
    plain = value.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if plain.is_floating_point() and not bool(torch.isfinite(plain).all()):
        raise Undefined("not finite")
    if float(plain.double().abs().max()) > LARGEST[plain.is_floating_point()]:
        raise Undefined("too large")
    refuse_casts(value, operands)


def refuse_casts(value: torch.Tensor, operands: Mapping[str, torch.Tensor]) -> None:
    """Raise for integers that may come from floats that they cannot hold: each compiler makes something else of it."""
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    low, high = RANGES.get(value.dtype, WHOLE)
    for operand in operands.values() if whole else ():
        if operand.is_floating_point() and operand.numel():
            least, most = (float(end) for end in operand.detach().aminmax())
            if not (low <= least and most <= high):
                raise Undefined("out of range")
