"""Memory: a storage inside another, and whoever allocates in generated code."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchparity.torchapi.door import lookup

# The functions that inductor's generated code allocates with, by the device.
ALLOCATORS = ("empty_strided_cpu", "empty_strided_cuda", "empty_strided_xpu")
# Those that a backend's own code allocates with, before it hands the memory to a kernel.
FACTORIES = ("empty", "empty_like", "empty_strided", "zeros", "zeros_like")
METHODS = ("new_empty", "new_zeros", "clone")
Allocate = Callable[..., torch.Tensor]
# What hands a tensor's memory to somebody who may write to it unseen: NumPy, another library, a user's own kernel.
HANDS_OUT = ("numpy", "__array__", "__dlpack__", "data_ptr")
WRITES_BYTES = ("copy_", "fill_", "__setitem__")


def storage_inside(buffer: torch.Tensor, first: int, count: int) -> torch.UntypedStorage:
    """Return some bytes of a buffer as a storage of their own, which keeps the buffer alive."""
    with torch.cuda.device_of(buffer):  # Torch hands memory on from the current device only.
        inner: torch.Tensor = torch.from_dlpack(buffer[first : first + count])  # type: ignore[attr-defined]
    return inner.untyped_storage()


def memory_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return where a tensor's storage begins and ends; nothing where it has none, or may no longer be looked at."""
    try:
        storage = tensor.untyped_storage()
        first = int(storage.data_ptr())
        return (first, first + int(storage.nbytes())) if first and storage.nbytes() else None
    except (NotImplementedError, RuntimeError):
        return None


@contextlib.contextmanager
def allocating(replaced_by: Callable[[Allocate], Allocate], *, factories: bool) -> Iterator[None]:
    """Let inductor's generated code allocate through another function; with `factories`, whoever does so in Python too.

    Dynamo would compile anew what it knows to call such a factory: with these replaced, it raises instead.
    """
    holders: list[tuple[Any, str]] = [(torch, name) for name in FACTORIES] if factories else []
    holders += [(torch.Tensor, name) for name in METHODS] if factories else []
    if "torch._inductor.codecache" in sys.modules:
        generated = list(lookup("torch._inductor.codecache.PyCodeCache").modules)
        holders += [(module, name) for module in generated for name in ALLOCATORS if name in vars(module)]
    before = [(holder, name, name in vars(holder), getattr(holder, name)) for holder, name in holders]
    for holder, name, _, allocate in before:
        setattr(holder, name, replaced_by(allocate))
    try:
        with torch.compiler.set_stance("fail_on_recompile") if factories else contextlib.nullcontext():
            yield
    finally:
        for holder, name, own, allocate in before:
            setattr(holder, name, allocate) if own else delattr(holder, name)


@contextlib.contextmanager
def memory_handed_out(hear: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Hear of every storage whose memory Python hands to others, or writes to by bytes: no operation tells of that."""

    def telling(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def told(owner: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # Some tensors have none.
                hear(owner if isinstance(owner, torch.UntypedStorage) else owner.untyped_storage())
            return method(owner, *args, **kwargs)

        return told

    holders: list[tuple[Any, str]] = [(torch.Tensor, name) for name in HANDS_OUT]
    holders += [(torch.UntypedStorage, name) for name in WRITES_BYTES]
    before = [(holder, name, name in vars(holder), getattr(holder, name)) for holder, name in holders]
    for holder, name, _, method in before:
        setattr(holder, name, telling(method))
    try:
        yield
    finally:
        for holder, name, own, method in before:
            setattr(holder, name, method) if own else delattr(holder, name)
