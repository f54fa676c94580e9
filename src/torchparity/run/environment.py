"""Where a verdict was made: versions and hardware, as facts."""

from __future__ import annotations

import platform
from typing import Any

import torch

from torchparity import torchapi
from torchparity.version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """Return the versions and the device that a verdict holds for."""
    facts: dict[str, Any] = {
        "torchparity": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_properties(device).name
        facts["cuda"] = torch.version.cuda
        facts |= torchapi.device_numerics()
    else:
        facts["cpu"] = torch.backends.cpu.get_cpu_capability()
    return facts
