"""Ready-made suites: models of well-known libraries, from configurations with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchparity.errors import UsageError
from torchparity.request import suggestion

MATRIX = {"dtype": ["float32", "bfloat16"], "train": [False, True]}
SUITES = ("transformers", "timm", "torchvision")


def ready_made(name: str) -> Mapping[str, Any]:
    """Return a ready-made suite, as a file would say it."""
    if name not in SUITES:
        raise UsageError(
            f"there is no ready-made suite {name!r}", hint=suggestion(name, SUITES, f"there are {', '.join(SUITES)}")
        )
    from torchparity.fleet import zoo  # It needs torch, which takes its time to import.

    models = {
        "transformers": (*zoo.TRANSFORMERS, *zoo.VISION, *zoo.SOUND),
        "timm": zoo.TIMM,
        "torchvision": zoo.TORCHVISION,
    }
    target = {"of": f"torchparity.fleet.zoo:{name}_model", "parameters": {"name": list(models[name])}, "labels": [name]}
    return {"target": [target], "matrix": MATRIX}
