"""Red zones: memory before and after a tensor that nobody may write to, and how far somebody did.

An allocator rounds sizes up and packs tensors side by side, so that a kernel which writes past its own tensor spoils
nothing, or a neighbour that nobody suspects. Between red zones it is seen, whatever it would have hit.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchparity import torchapi

# Bytes on each side: as far as a kernel's block may reach, and a multiple of what any allocator aligns to.
ZONE = 4096
PATTERN = 0xA5
# Bytes that may be held because a zone beside them was not looked at yet.
UNSEEN_BYTES = 2**30


# A tensor's name, the zone before it and the zone after it.
Fenced = tuple[str, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Breach:
    """A tensor beside which somebody wrote, and how many bytes away from it at most."""

    name: str
    before: int
    after: int


class Zones:
    """Tensors between red zones, of one run."""

    def __init__(self) -> None:
        self.lasting: list[Fenced] = []
        self.passing: list[Fenced] = []
        self.held = 0
        self.busy = False
        self.seen: list[tuple[list[str], torch.Tensor]] = []

    def copy(self, name: str, storage: torch.UntypedStorage, *, lasting: bool = True) -> torch.UntypedStorage:
        """Return a copy of a storage between red zones: one that lasts for the whole run, or one that may go sooner."""
        count = storage.nbytes()
        buffer = torch.empty(ZONE + count + ZONE, dtype=torch.uint8, device=storage.device)
        entry = (name, buffer[:ZONE].fill_(PATTERN), buffer[-ZONE:].fill_(PATTERN))
        if lasting:
            self.lasting.append(entry)
        else:
            self.passing.append(entry)
            self.held += buffer.nbytes
            if self.held > UNSEEN_BYTES:
                self.look()
        room = torchapi.storage_inside(buffer, ZONE, count)
        room.copy_(storage)
        return room

    def allocator(self, allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Return a function that allocates as another does, between red zones."""

        @functools.wraps(allocate)
        def zoned(*args: Any, **kwargs: Any) -> torch.Tensor:
            made = allocate(*args, **kwargs)
            if self.busy or kwargs.get("out") is not None or not placeable(made) or made.requires_grad:
                return made
            self.busy = True  # What is allocated meanwhile is our own.
            try:
                return like(made, self.copy(caller(), made.untyped_storage(), lasting=False))
            finally:
                self.busy = False

        return zoned

    def look(self) -> None:
        """See how far somebody wrote beside what has passed, without waiting for the device; let go of it."""
        by_device: dict[torch.device, list[Fenced]] = {}
        for entry in self.passing:
            by_device.setdefault(entry[1].device, []).append(entry)
        for device, entries in by_device.items():
            steps = torch.arange(1, ZONE + 1, dtype=torch.int32, device=device)
            before = (torch.stack([entry[1] for entry in entries]) != PATTERN) * steps.flip(0)
            after = (torch.stack([entry[2] for entry in entries]) != PATTERN) * steps
            self.seen.append(([entry[0] for entry in entries], torch.stack([before.amax(1), after.amax(1)], 1)))
        self.passing.clear()
        self.held = 0

    def breaches(self) -> list[Breach]:
        """Return the tensors beside which somebody wrote."""
        self.passing += self.lasting
        self.lasting.clear()
        self.look()
        found = [
            Breach(name, before, after)
            for names, distances in self.seen
            for name, (before, after) in zip(names, distances.tolist(), strict=True)
            if before or after
        ]
        self.seen.clear()
        return found


def like(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor in some storage, laid out as another one."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def placeable(tensor: Any) -> bool:
    """Tell whether a tensor is plain memory of its own that nothing is recorded of."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and torchapi.in_memory(tensor)
        and tensor.numel() > 0
        and (tensor.is_leaf or not tensor.requires_grad)
        and not tensor.is_pinned()
    )


def caller() -> str:
    """Say which line of whose code asked for memory."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return "memory"
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, line).strip()
    made, assigned, _ = text.partition(" = ")
    return f"{made} of {Path(name).name}:{line}" if assigned else f"memory asked for at {Path(name).name}:{line}"
