"""The door itself: a private name of torch, looked up when it is needed; a missing one is one clear error."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from torchparity.errors import TorchVersionError


def lookup(path: str) -> Any:
    """Return the object at a dotted path such as `torch._inductor.config.patch`."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        try:
            for name in parts[split:]:
                found = getattr(found, name)
        except AttributeError:
            break
        return found
    raise TorchVersionError(
        f"torch {torch.__version__} has no `{path}`, which torchparity stands on",
        hint="torchparity works with torch 2.11 to 2.13: install one of these",
    )
