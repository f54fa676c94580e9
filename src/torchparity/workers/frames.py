"""Frames: a small JSON header and a body of bytes, over a pipe or a socket whose other end may write anything."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAGIC = b"TPF1"
PREFIX = struct.Struct(">4sII")
HEADER_LIMIT = 4 * 1024 * 1024
BODY_LIMIT = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One message. The body is not looked at on the way: only its receiver parses it."""

    header: Mapping[str, Any]
    body: bytes = b""

    @property
    def kind(self) -> str:
        """What the message says, as a word."""
        return str(self.header.get("kind", ""))


def pack(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """Return the bytes of one frame."""
    header = json.dumps({"kind": kind, **fields}).encode()
    return PREFIX.pack(MAGIC, len(header), len(body)) + header + body


class FrameReader:
    """Takes bytes as they come and gives whole frames; the first bytes that are no frame end the conversation."""

    def __init__(self) -> None:
        self.broken = False
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete. After garbage there are none, ever."""
        if self.broken:
            return []
        self._buffer += data
        frames = []
        while (frame := self._take()) is not None:
            frames.append(frame)
        return frames

    def _take(self) -> Frame | None:
        if self.broken or len(self._buffer) < PREFIX.size:
            return None
        magic, header_size, body_size = PREFIX.unpack_from(self._buffer)
        if magic != MAGIC or header_size > HEADER_LIMIT or body_size > BODY_LIMIT:
            self._break()
            return None
        end = PREFIX.size + header_size + body_size
        if len(self._buffer) < end:
            return None
        try:
            header = json.loads(self._buffer[PREFIX.size : PREFIX.size + header_size])
        except (ValueError, RecursionError):
            self._break()
            return None
        if not isinstance(header, dict):
            self._break()
            return None
        body = bytes(memoryview(self._buffer)[PREFIX.size + header_size : end])
        del self._buffer[:end]
        return Frame(header=header, body=body)

    def _break(self) -> None:
        self.broken = True
        self._buffer.clear()
