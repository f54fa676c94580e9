"""Whether a bundle was made by this user on this machine: a digest with a key that nobody else has.

A bundle is a program. What one has made oneself is run without a question; what comes from elsewhere is shown first.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

KEY_BYTES = 32


def data_folder() -> Path:
    """Return where this user's programs keep what they must remember."""
    named = os.environ.get("XDG_DATA_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "share") / "torchparity"


def seal_of(check: str) -> str:
    """Return the seal of a bundle by its checksum; nothing where no key can be kept."""
    key = _key(make=True)
    return _sealed(key, check) if key is not None else ""


def is_ours(check: str, seal: object) -> bool:
    """Tell whether a seal was made by this user on this machine."""
    key = _key(make=False)
    if key is None or not isinstance(seal, str) or not seal.isascii():
        return False
    return hmac.compare_digest(_sealed(key, check), seal)


def _sealed(key: bytes, check: str) -> str:
    return hmac.new(key, check.encode(), hashlib.sha256).hexdigest()


def _key(*, make: bool) -> bytes | None:
    """Return the key, made once; None where there is none."""
    try:
        path = data_folder() / "key"
        with contextlib.suppress(FileNotFoundError):
            return _whole(path)
        if not make:
            return None
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(KEY_BYTES))
            os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)  # Whoever comes first has made it; a key is never replaced.
        finally:
            os.close(descriptor)
            partial.unlink()
        return _whole(path)
    except (OSError, RuntimeError):  # No home, or none that can be written to.
        return None


def _whole(path: Path) -> bytes | None:
    key = path.read_bytes()
    return key if len(key) == KEY_BYTES else None
