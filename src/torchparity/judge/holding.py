"""What a caller may still hold when he calls again: is the memory of one call's outputs given out by the next?"""

from __future__ import annotations

from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.leaves import Leaf

# Bytes of outputs that are held for it.
HELD_BYTES = 2**28


class Held:
    """The outputs of the last call, held as a caller would, and those of this one."""

    def __init__(self) -> None:
        self.last: list[tuple[str, torch.Tensor]] = []
        self.this: list[tuple[str, torch.Tensor]] = []
        self.shared: dict[str, str] = {}
        self.size = 0

    def hear(self, leaf: Leaf) -> None:
        """Hear of a leaf; the structure of its outputs is the first of a call."""
        if leaf.role == "structure":
            self.last, self.this, self.size = self.this, [], 0
        value: Any = leaf.value
        if leaf.role != "output" or leaf.aliases or not isinstance(value, torch.Tensor):
            return
        place = torchapi.memory_of(value) if torchapi.is_plain(value) and value.numel() else None
        if place is None:
            return
        for path, held in self.last:
            other = torchapi.memory_of(held)  # Nothing where a device gives it out again and says so to who looks.
            if held.device == value.device and other is not None and other[0] < place[1] and place[0] < other[1]:
                self.shared.setdefault(leaf.path, path)
        self.size += place[1] - place[0]
        if self.size <= HELD_BYTES:
            self.this.append((leaf.path, value))
