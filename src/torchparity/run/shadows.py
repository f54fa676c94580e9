"""Float64 twins of storages, dropped when the storage dies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchparity import torchapi

PROMOTED = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.float8_e4m3fnuz: torch.float64,
    torch.float8_e5m2fnuz: torch.float64,
}
# Nothing is shorter than float32: what code computes that rounds to half precision at the very end.
WIDENED = {dtype: torch.complex64 if dtype.is_complex else torch.float32 for dtype in PROMOTED}
# Dead shadows are looked for after this many new bytes, or a quarter of what is alive.
SWEEP_BYTES = 16 << 20


class Shadows:
    """Float64 twins of storages (or twins in other `formats`), dropped when the storage dies."""

    def __init__(self, formats: Mapping[torch.dtype, torch.dtype] = PROMOTED) -> None:
        self.formats = formats
        self._entries: dict[int, tuple[Any, torch.dtype, torch.Tensor]] = {}
        self._objects: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # Storages that somebody else may write to, unseen: what they hold is taken as it is.
        self._lent: dict[int, Any] = {}
        self._new_bytes = 0
        self._live_bytes = 0

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the float64 value of a tensor."""
        if tensor.dtype not in self.formats:
            return tensor
        twin = self._twin(tensor)
        if twin is None:
            return tensor.detach().to(self.formats[tensor.dtype])
        if tensor.is_conj():
            twin = twin.conj()
        return twin.neg() if tensor.is_neg() else twin

    def has(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor has a shadow of its own."""
        return self._twin(tensor) is not None

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not torchapi.has_memory(tensor):
            held = self._objects.get(id(tensor))
            return held[1] if held is not None else None
        key = torchapi.storage_key(tensor)
        entry = self._entries.get(key) if key is not None else None
        if entry is None or entry[0].expired():
            return None
        _, dtype, flat = entry
        if dtype != tensor.dtype:
            if dtype.is_complex and not tensor.is_complex():
                flat = torch.view_as_real(flat).view(-1)
            elif tensor.is_complex() and not dtype.is_complex:
                flat = torch.view_as_complex(flat.view(-1, 2))
            else:
                return None
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def materialise(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the shadow of a tensor that is about to be written to, making one if it has none."""
        twin = self._twin(tensor)
        if twin is not None:
            return twin
        if self._is_lent(tensor):
            return tensor.detach().to(self.formats[tensor.dtype], copy=True)
        if not torchapi.has_memory(tensor):
            self._objects[id(tensor)] = (tensor, tensor.detach().to(self.formats[tensor.dtype], copy=True))
            return self._objects[id(tensor)][1]
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        flat.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
        self._enter(tensor, flat.to(self.formats[tensor.dtype], copy=True))
        twin = self._twin(tensor)
        assert twin is not None
        return twin

    def write(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Make `value` the shadow of a fresh result."""
        wanted = self.formats[tensor.dtype]
        if value.dtype != wanted:
            value = value.to(wanted)
        if not torchapi.has_memory(tensor):
            if torchapi.has_values(tensor):
                self._objects[id(tensor)] = (tensor, value)
            return
        if self._is_lent(tensor):
            return
        if self._twin(tensor) is None:
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            if (
                value.stride() == tensor.stride()
                and tensor.storage_offset() == value.storage_offset() == 0
                and value.untyped_storage().nbytes() == elements * value.element_size()
            ):
                self._enter(tensor, value.as_strided((elements,), (1,)))
                return
            self._enter(tensor, torch.zeros(elements, dtype=wanted, device=tensor.device))
        twin = self._twin(tensor)
        assert twin is not None
        twin.copy_(value)

    def _enter(self, tensor: torch.Tensor, flat: torch.Tensor) -> None:
        key = torchapi.storage_key(tensor)
        assert key is not None
        size = flat.numel() * flat.element_size()
        self._new_bytes += size
        self._live_bytes += size
        self._entries[key] = (
            torchapi.StorageWeakRef(tensor.untyped_storage()),
            tensor.dtype,
            flat,
        )
        if self._new_bytes > max(SWEEP_BYTES, self._live_bytes // 4):
            self._sweep()

    def _sweep(self) -> None:
        for key in [key for key, entry in self._entries.items() if entry[0].expired()]:
            del self._entries[key]
        self._new_bytes = 0
        self._live_bytes = sum(flat.numel() * flat.element_size() for _, _, flat in self._entries.values())

    def lend(self, storage: torch.UntypedStorage) -> None:
        """Hear that somebody else has a storage's memory from now on."""
        key = torchapi.key_of_storage(storage)
        self._entries.pop(key, None)
        self._lent[key] = torchapi.StorageWeakRef(storage)

    def _is_lent(self, tensor: torch.Tensor) -> bool:
        key = torchapi.storage_key(tensor) if self._lent else None
        entry = self._lent.get(key) if key is not None else None
        return entry is not None and not entry.expired()

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop a shadow that is no longer wanted."""
        key = torchapi.storage_key(tensor)
        if key is not None:
            self._entries.pop(key, None)
