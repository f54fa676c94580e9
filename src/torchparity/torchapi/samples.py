"""PyTorch's own database of operators, in the wheel: each with inputs that it takes. It needs `expecttest`."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import torch

DATABASE = "torch.testing._internal.common_methods_invocations"


def has_operator_database() -> bool:
    """Tell whether the database can be read here."""
    return importlib.util.find_spec("expecttest") is not None


def operator_samples(
    dtypes: tuple[torch.dtype, ...],
) -> Iterator[tuple[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]]:
    """Yield every operator by the name that it has below `torch`, with samples in the first dtype that it takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in importlib.import_module(DATABASE).op_db:
            supported = entry.supported_dtypes("cpu")
            dtype = next((dtype for dtype in dtypes if dtype in supported), None)
            if dtype is None:
                continue
            try:
                samples = list(entry.sample_inputs("cpu", dtype, requires_grad=False))
            except Exception:  # noqa: BLE001 - the database may want what this machine has not
                continue
            yield entry.name, [((sample.input, *sample.args), dict(sample.kwargs)) for sample in samples]
