"""Tensors as torch keeps them: storages, classes, symbols, shards; and pytrees of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchparity.torchapi.door import lookup

# What operations are given beside tensors.
NO_TENSORS = frozenset((type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout))


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's storage, or None where it has none (sparse, wrappers)."""
    try:
        return key_of_storage(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def key_of_storage(storage: torch.UntypedStorage) -> int:
    """Return the identity of a storage."""
    return int(storage._cdata)


def negative_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor seen with the other sign, nothing computed."""
    view: torch.Tensor = lookup("torch._neg_view")(tensor)
    return view


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been written to."""
    return int(tensor._version)


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return indices and values of a sparse tensor as they lie there, sorted or not."""
    return [tensor._indices(), tensor._values()]


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is torch's own class with a strided layout and a storage."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def has_values(tensor: torch.Tensor) -> bool:
    """Tell whether there are numbers behind a tensor: none behind one on the meta device."""
    return tensor.device.type != "meta"


def in_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's numbers lie in memory as they are, so that its bits may be read and written.

    A conjugate or negative view lies there with other signs.
    """
    return has_memory(tensor) and not (tensor.is_conj() or tensor.is_neg())


def has_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor of torch's own class has memory: autograd hands out zeros that have a size and none."""
    return is_plain(tensor) and can_be_written(tensor)


def can_be_written(tensor: torch.Tensor) -> bool:
    """Tell whether numbers can be copied into a tensor of whatever class."""
    return has_values(tensor) and not tensor._is_zerotensor()


def lies_outside(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's numbers would lie outside of its own memory, where nobody may read."""
    if not has_memory(tensor) or tensor.numel() == 0:
        return False
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Tell whether two elements of a tensor are one place in memory, so that torch refuses to write to it."""
    return int(lookup("torch._debug_has_internal_overlap")(tensor)) == 1


def is_wrapper(tensor_type: type) -> bool:
    """Tell whether a tensor class wraps other tensors and takes operations apart itself."""
    return hasattr(tensor_type, "__tensor_flatten__")


def takes_apart(tensor_type: type) -> bool:
    """Tell whether a tensor class takes operations apart itself, whether or not it says what it is made of."""
    own = getattr(tensor_type, "__torch_dispatch__", None)
    fake = tensor_type.__module__.startswith("torch._subclasses")
    return is_wrapper(tensor_type) or (own is not torch.Tensor.__torch_dispatch__ and not fake)


def pytree_children(value: Any) -> list[Any] | None:
    """Return the children of a value whose class is registered as a pytree node, else None."""
    registry = pytree.SUPPORTED_NODES
    if type(value) not in registry:
        return None
    return list(registry[type(value)].flatten_fn(value)[0])


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of a pytree; plain tuples, lists and mappings cost little."""
    kind = type(tree)
    if kind is tuple:
        return tuple([tree_map(function, item) for item in tree])
    if kind is list:
        return [tree_map(function, item) for item in tree]
    if kind is dict:
        return {key: tree_map(function, item) for key, item in tree.items()}
    if kind in NO_TENSORS or kind is torch.Tensor:
        return function(tree)
    return pytree.tree_map(function, tree)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a pytree, in order; most operations give one tensor."""
    return [tree] if type(tree) is torch.Tensor else pytree.tree_leaves(tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a pytree, in order; plain tuples and lists, which all operations have, cost little."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    kind = type(tree)
    if kind in NO_TENSORS:
        return []
    if kind is dict:
        tree = tree.values()
    elif kind is not tuple and kind is not list:
        return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [leaf for item in tree for leaf in tensors_in(item)]


def is_fake(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a shape but no values."""
    return isinstance(tensor, lookup("torch._subclasses.FakeTensor")) or tensor.device.type == "meta"


def symbol_hint(symbol: Any) -> int | float | bool | None:
    """Return the value that a symbolic number has in the run that is traced; None where it has none (ragged sizes)."""
    hint: int | float | bool | None = getattr(symbol.node, "hint", None)
    return hint


def symbol_expression(symbol: Any) -> str:
    """Return how a symbolic number is written: `s77`, `s77**2`."""
    return str(symbol.node.expr)


def symbol_range(symbol: Any) -> tuple[int | None, int | None]:
    """Return the least and the greatest value that a symbolic size may have; None where there is no end."""
    found = getattr(symbol.node.shape_env, "var_to_range", {}).get(symbol.node.expr)
    ends: list[Any] = [getattr(found, name, None) for name in ("lower", "upper")]
    low, high = (int(end) if getattr(end, "is_Integer", False) else None for end in ends)
    return low, high


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds: its shard where it is a DTensor, else the tensor itself."""
    sharding = sys.modules.get("torch.distributed.tensor")  # Without it there are no DTensors.
    if sharding is None or not isinstance(tensor, sharding.DTensor):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def shard_again(module: torch.nn.Module) -> None:
    """Let an FSDP2 module that a forward pass has left whole hold its shard again."""
    sharding = sys.modules.get("torch.distributed.fsdp")
    if sharding is not None and isinstance(module, sharding.FSDPModule):
        module.reshard()


def open_store(host: str, port: int, *, serve: bool, seconds: float, prefix: str) -> Any:
    """Return a connection to a key-value store that ranks share, served here or by another."""
    store = lookup("torch.distributed.TCPStore")(
        host,
        port,
        is_master=serve,
        timeout=timedelta(seconds=max(seconds, 1.0)),
        wait_for_workers=False,
        multi_tenant=True,
    )
    return lookup("torch.distributed.PrefixStore")(prefix, store)
