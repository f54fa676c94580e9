"""Accelerators that fail: what a driver says when a kernel is wrong, and whether the device still works after it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import time
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import torch

from torchparity.torchapi.door import lookup

# What drivers and Triton's launcher say where a kernel has left the context beyond use.
FAULTS = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "illegal instruction",
    "invalid address space",
    "invalid program counter",
    "unspecified launch failure",
    "launch timed out",
    "hardware stack error",
    "uncorrectable ecc",
)
# file:line: function: block: [0,0,0], thread: [1,0,0] Assertion `index out of bounds: 0 <= tmp4 < 5` failed.
ASSERTION = re.compile(r"^(?P<file>\S+?):(?P<line>\d+): .*?: block: .*?Assertion `(?P<what>.*)` failed", re.M)
# Kernels that eager's attention may take.
ATTENTION = ("flash", "mem_efficient", "cudnn", "math")
HANGS = "kernel that never ends"
POLL_SECONDS = 0.002


class KernelHangs(RuntimeError):
    """A device has not come to rest in the time that it was given: nothing can be asked of it any more."""


def is_device_error(error: BaseException) -> bool:
    """Tell whether an exception comes from an accelerator that has failed, and not from the call that raised it."""
    kind = getattr(torch, "AcceleratorError", None)
    return isinstance(error, KernelHangs) or (kind is not None and isinstance(error, kind)) or bool(_said(error))


def device_fault(error: BaseException) -> str:
    """Return what befell a device, the same words whoever noticed it."""
    return HANGS if isinstance(error, KernelHangs) else _said(error) or "device error"


def _said(error: BaseException) -> str:
    text = next(iter(str(error).lower().splitlines()), "")  # What follows is advice, and speaks of assertions too.
    return next((words for words in FAULTS if words in text), "")


def settle(device: torch.device, seconds: float | None = None) -> None:
    """Wait until a device has done all that was asked, so that what is wrong shows here; raise where it never does."""
    if device.type != "cuda":
        return
    if seconds is not None:
        stream = torch.cuda.current_stream(device)
        end = time.monotonic() + seconds
        while not stream.query():
            if time.monotonic() > end:
                raise KernelHangs(f"the device is still busy {seconds:.0f} s after it was asked")
            time.sleep(POLL_SECONDS)
    torch.cuda.synchronize(device)


def device_lost(device: torch.device) -> bool:
    """Tell whether nothing can be asked of a device any more."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).add_(1.0).item()
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False


def failed_assertion(output: str) -> tuple[str, str]:
    """Return what an assertion on a device said, and where: the driver prints it, and no exception tells."""
    found = ASSERTION.search(output)
    return (found["what"], f"{Path(found['file']).name}:{found['line']}") if found is not None else ("", "")


def is_distributed() -> bool:
    """Tell whether this process is one of several that compute together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def allows_tf32(operation: str) -> bool:
    """Tell whether torch may shorten float32 factors to 11 bits in matrix products, or in convolutions."""
    module: Any = torch.backends.cudnn if "conv" in operation else torch.backends.cuda.matmul
    try:
        return bool(module.allow_tf32)
    except RuntimeError:  # It was said in the newer way, and torch answers only in that one then.
        newer = getattr(module, "conv", module)
        return bool(newer.fp32_precision == "tf32")


def device_numerics() -> dict[str, Any]:
    """Return the settings that decide how a GPU rounds, and which library, kernel or order of sums it takes."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    library: Any = torch.backends.cuda.preferred_blas_library()
    attention = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled", None) for name in ATTENTION}
    return {
        "tf32_products": allows_tf32("mm"),
        "tf32_convolutions": allows_tf32("convolution"),
        "fp16_reduced_sums": bool(products.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_sums": bool(products.allow_bf16_reduced_precision_reduction),
        "fp16_accumulation": bool(getattr(products, "allow_fp16_accumulation", False)),
        "products_by": str(library.name).lower(),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        "cudnn": str(cudnn.version() or "") if cudnn.enabled else "",
        "cudnn_benchmark": bool(cudnn.benchmark),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "attention_by": ", ".join(name for name, enabled in attention.items() if enabled is not None and enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@functools.cache
def working_kernels(kind: str, module: str) -> Any:
    """Return a module of Triton kernels for a kind of device; None where there is no Triton, or none that works."""
    if kind != "cuda":
        return None
    try:
        kernels = importlib.import_module(module)
        kernels.try_out(torch.device(kind))
    except Exception:  # noqa: BLE001 - it may lack a compiler, a driver, anything: the plain form does the same
        return None
    return kernels


# Lines that undo what imported files have done to torch's defaults in this process.
_undone: set[str] = set()


@contextlib.contextmanager
def keeping_defaults() -> Iterator[None]:
    """Import somebody's file inside: a default device or dtype that it sets is put back, and remembered."""
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    try:
        yield
    finally:
        _undone.update(undoing_defaults())
        if torch.get_default_device() != device:
            torch.set_default_device(device if device.type != "cpu" else None)
        torch.set_default_dtype(dtype)


def device_constructors() -> Set[Any]:
    """Return the functions that make a tensor of nothing, on the default device where none is named."""
    found: Set[Any] = lookup("torch.utils._device._device_constructors")()
    return found


def undoing_defaults() -> list[str]:
    """Return the lines that a script needs which imports such files and makes tensors of its own."""
    found = set(_undone)
    if torch.get_default_device().type != "cpu":
        found.add('torch.set_default_device("cpu")')
    if torch.get_default_dtype() != torch.float32:
        found.add("torch.set_default_dtype(torch.float32)")
    return sorted(found)


def start_device() -> None:
    """Start the GPU, where there is one, and what its products need: each process does that once, for half a second."""
    if has_gpu():
        ones = torch.ones(16, 16, device="cuda")
        (ones @ ones).sum().item()


def has_gpu() -> bool:
    """Tell whether there is a GPU that torch can use; asking starts no driver where it can be told without."""
    return torch.backends.cuda.is_built() and torch.cuda.is_available()
