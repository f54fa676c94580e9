"""What a caller may still hold when he calls again: is its memory given out by a later call, or written over?"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.digests import digest_of
from torchparity.compare.leaves import Leaf
from torchparity.compare.matrices import row_of_bytes

# Bytes of outputs that are held of a call, and of all the calls before it; and how many of those.
HELD_BYTES, HELD_OUTPUTS = 2**28, 512


@dataclass(frozen=True, eq=False, kw_only=True)
class Output:
    """An output as it was when its call returned: where it lies, and its bits by their digest."""

    path: str
    value: torch.Tensor
    place: tuple[int, int]
    bits: int | str | None

    @property
    def size(self) -> int:
        """How many bytes are held for it."""
        return self.place[1] - self.place[0]

    def shares(self, other: torch.Tensor, place: tuple[int, int]) -> bool:
        """Tell whether another tensor lies in the memory of this one, which nobody has let go of."""
        if self.place[0] >= place[1] or place[0] >= self.place[1]:
            return False
        mine = torchapi.memory_of(self.value)  # Nothing where a device gives it out again and says so to who looks.
        return self.value.device == other.device and mine is not None and mine[0] < place[1] and place[0] < mine[1]

    def has_changed(self) -> bool:
        """Tell whether it holds other numbers now."""
        return self.bits is not None and bits_of(self.value) not in (self.bits, None)


class Held:
    """The outputs of the calls so far, held as a caller would, and those of this one.

    Of a candidate that `reuses` its memory, and may, only the last call's are held, and nobody looks at them again.
    """

    def __init__(self, *, reuses: bool = False) -> None:
        self.reuses = reuses
        self.calls = 0
        self.before: deque[Output] = deque()
        self.this: list[Output] = []
        # Outputs whose memory a later call gives out, with whose it was; and those that a later call writes over.
        self.shared: dict[str, str] = {}
        self.changed: set[str] = set()

    def hear(self, leaf: Leaf) -> None:
        """Hear of a leaf; the structure of its outputs is the first of a call."""
        if leaf.role == "structure":
            self._next_call()
        value: Any = leaf.value
        if leaf.role != "output" or leaf.aliases or not isinstance(value, torch.Tensor):
            return
        place = torchapi.memory_of(value) if torchapi.is_plain(value) and value.numel() else None
        if place is None:
            return
        for held in self.before:
            if held.shares(value, place):
                self.shared.setdefault(leaf.path, held.path)
        if sum(held.size for held in self.this) + place[1] - place[0] <= HELD_BYTES:
            bits = None if self.reuses else bits_of(value)
            self.this.append(Output(path=leaf.path, value=value, place=place, bits=bits))

    def look_again(self) -> set[str]:
        """Return the outputs that hold other numbers than when their call returned."""
        self.changed |= {held.path for held in (*self.before, *self.this) if held.has_changed()}
        return self.changed

    def _next_call(self) -> None:
        """Hold what the last call returned, too; of what those before it did, the oldest go where all is full."""
        self.calls += 1
        if self.reuses:
            self.before.clear()
        self.before.extend(self.this)
        size, latest = sum(held.size for held in self.before), len(self.this)
        self.this = []
        while (size > HELD_BYTES or len(self.before) > HELD_OUTPUTS) and len(self.before) > latest:
            oldest = self.before.popleft()
            size -= oldest.size
            self.changed |= {oldest.path} if oldest.has_changed() else set()


def bits_of(value: torch.Tensor) -> int | str | None:
    """Return the digest of a tensor's numbers; nothing where it has none, or may no longer be looked at.

    Nor where it has more numbers than memory.
    """
    try:
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            return None
        row = row_of_bytes(value.detach().contiguous())
        return None if row is None else digest_of(row)
    except (NotImplementedError, RuntimeError):
        return None
