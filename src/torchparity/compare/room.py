"""Memory that is written anew by every pass over a leaf on a GPU, so that a pass allocates nothing."""

from __future__ import annotations

import threading
import weakref

import torch

# Where a piece may begin, in bytes: every dtype may lie there, and the compiler knows what it is a multiple of.
ALIGNED = 256
# Rooms grow by so many bytes, lest every leaf that is a little larger makes another.
GROWTH = 1 << 21


class Room:
    """Memory for what programs leave behind until it is added up.

    The leaves that one thread works on take turns with it: what they ask of a stream is done in that order. It goes
    with the last leaf that holds it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.size = 0
        self._memory: torch.Tensor | None = None
        self._cut: dict[tuple[tuple[int, torch.dtype], ...], list[torch.Tensor]] = {}

    @staticmethod
    def of(device: torch.device) -> Room:
        """Return the room of this thread and its stream; whoever wants it again keeps it."""
        stream = 0 if device.type == "cpu" else torch.accelerator.current_stream(device).stream_id
        key = threading.get_ident(), device, stream
        room = _ROOMS.get(key)
        if room is None:
            room = _ROOMS[key] = Room(device)
        return room

    def pieces(self, *wanted: tuple[int, torch.dtype]) -> list[torch.Tensor]:
        """Return so many numbers of each dtype, beside each other; whatever lay there before is lost."""
        found = self._cut.get(wanted)  # Leaves of one size are many, and a pass over a small one is short.
        return found if found is not None else self._cut_up(wanted)

    def _cut_up(self, wanted: tuple[tuple[int, torch.dtype], ...]) -> list[torch.Tensor]:
        starts, end = [], 0
        for count, dtype in wanted:
            starts.append(end)
            end += -(-count * dtype.itemsize // ALIGNED) * ALIGNED
        if self._memory is None or end > self.size:
            self._cut.clear()
            self._memory = None  # What is too small goes before there is more.
            self.size = -(-end // GROWTH) * GROWTH
            self._memory = torch.empty(self.size, dtype=torch.uint8, device=self.device)
        found = []
        for (count, dtype), start in zip(wanted, starts, strict=True):
            found.append(self._memory[start : start + count * dtype.itemsize].view(dtype))
        self._cut[wanted] = found
        return found


_ROOMS: weakref.WeakValueDictionary[tuple[int, torch.device, int], Room] = weakref.WeakValueDictionary()
