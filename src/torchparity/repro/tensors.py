"""The tensors of a case in one safetensors file: storages as they lie in memory, written and read in one go.

The format is simple enough (a length, a JSON header, the bytes) that writing it straight from memory costs one
pass; the library copies first. A file written here is read by any safetensors reader, and the tests do so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torchparity.compare.checksum import PAGE
from torchparity.repro.looking import Stored
from torchparity.repro.values import Storage

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
SIZES = {code: dtype.itemsize for dtype, code in CODES.items()}


def header_of(storages: Sequence[Storage]) -> bytes:
    """Return the header of the file, padded so that the data begin at a multiple of eight."""
    entries: dict[str, Any] = {}
    offset = 0
    for number, storage in enumerate(storages):
        code = CODES.get(storage.dtype, "U8")
        size = storage.data.numel()
        entries[str(number)] = {
            "dtype": code,
            "shape": [size // SIZES[code]],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_storages(file: BinaryIO, storages: Sequence[Storage]) -> None:
    """Write storages as a safetensors file."""
    write_all(file, memoryview(header_of(storages)))
    for storage in storages:
        write_all(file, storage.data.numpy().data)


def write_all(file: BinaryIO, data: memoryview) -> None:
    """Write every byte, a page at a time: faster than all at once, and a write may take less than it is given."""
    while len(data):
        data = data[file.write(data[:PAGE]) :]


def read_storages(path: Path, stored: Sequence[Stored], devices: Sequence[str]) -> tuple[Storage, ...]:
    """Read the storages of a file, to the CPU; `devices` says where each one lived."""
    dtypes = {code: dtype for dtype, code in CODES.items()}
    # Mapped, not copied: a page is read when it is needed, and one that is written to becomes our own.
    mapped: Any = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    storages = []
    for place, device in zip(stored, devices, strict=True):
        data = torch.empty(0, dtype=torch.uint8, device="cpu").set_(
            mapped, place.begin, (place.end - place.begin,), (1,)
        )
        dtype = dtypes.get(place.code, torch.uint8)
        storages.append(Storage(data=data, device=device, dtype=dtype, known=place.digest))
    return tuple(storages)
