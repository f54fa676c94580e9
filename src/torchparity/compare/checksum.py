"""A digest of bytes, nearly at the speed of memory: the CRC of every page, then SHA-256 of these.

It tells damage and change, not malice. Sums of words times odd numbers are no faster, and lose pairs of signs.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Bytes that are summed up together; what is shorter is digested whole.
PAGE = 1 << 20


def fingerprint(data: torch.Tensor) -> str:
    """Return the digest of the bytes in a tensor."""
    return fingerprint_of(data.numpy().data)


def fingerprint_of(view: memoryview) -> str:
    """Return the digest of some bytes."""
    if len(view) <= PAGE:
        return hashlib.sha256(view).hexdigest()
    pages = [view[start : start + PAGE] for start in range(0, len(view), PAGE)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        sums = list(threads.map(zlib.crc32, pages))
    return hashlib.sha256(struct.pack(f"<Q{len(sums)}I", len(view), *sums)).hexdigest()
