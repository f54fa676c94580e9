"""The door itself: a private name of torch, looked up when it is needed; a missing one is one clear error."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch

from torchparity.errors import TorchVersionError


def lookup(path: str) -> Any:
    """Return the object at a dotted path such as `torch._inductor.config.patch`."""
    found: Any
    found, names = module_on(path)
    try:
        for name in names:
            found = getattr(found, name)
    except AttributeError:
        raise version_error(path) from None
    return found


@functools.cache
def module_on(path: str) -> tuple[ModuleType, list[str]]:
    """Return the module that a dotted path leads into, and the names that are left: found once, as finding is slow."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            return importlib.import_module(".".join(parts[:split])), parts[split:]
        except ModuleNotFoundError:
            continue
    raise version_error(path)


def version_error(path: str) -> TorchVersionError:
    """Return the error of a name that torch does not have."""
    return TorchVersionError(
        f"torch {torch.__version__} has no `{path}`, which torchparity stands on",
        hint="torchparity works with torch 2.11 to 2.13: install one of these",
    )
