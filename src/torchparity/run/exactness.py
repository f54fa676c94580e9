"""Which results are exact, whatever the order in which a compiler adds and multiplies.

Small integers and powers of two go through additions, products and sums without any rounding, as long as every partial
sum has few enough bits. A result that came only through such operations must come out bit for bit, in any dtype.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compare.facts import is_float
from torchparity.run.casts import undefined_in
from torchparity.run.operators import CONTRACTIONS, Traits

# Bits of the mantissa: an integer up to two to this power is a number of the dtype.
MANTISSA = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# Dtypes that have no wider one to be held against, and how many bits an exact number leaves unused there.
ITS_OWN_TWIN, UNUSED = (torch.float64, torch.complex128), 12
# Operations on single elements that round once or not at all: exact where float64 gives the very same numbers.
SINGLE = frozenset(
    """
    add sub rsub mul neg square pow addcmul threshold_backward hardtanh_backward leaky_relu_backward leaky_relu
    _to_copy reciprocal sgn fill masked_fill where lerp
    """.split()
)
# Sums: exact where the sum of all absolute terms has few enough bits, so that every partial sum has.
SUMS = frozenset(
    """
    sum cumsum trace dot mean scatter_add index_add index_put _index_put_impl embedding_dense_backward
    convolution_backward _foreach_add slice_backward select_backward index_select_backward diagonal_backward
    as_strided_scatter
    """.split()
)


class Exactness:
    """Follows exact results through a run: what is not known to be exact is tainted, and taints what is made of it."""

    def __init__(self) -> None:
        self._tainted: dict[int, Any] = {}
        self._objects: dict[int, torch.Tensor] = {}

    def is_exact(self, tensor: torch.Tensor) -> bool:
        """Tell whether every correct implementation gives this result bit for bit."""
        key = torchapi.storage_key(tensor)
        if key is None:
            return id(tensor) not in self._objects
        entry = self._tainted.get(key)
        return entry is None or entry.expired()

    def follow(
        self,
        func: Callable[..., Any],
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        doubled: tuple[Any, Any],
        results: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Decide about the results of an operation, each with what float64 makes of it."""
        given = [leaf for leaf in torchapi.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        held = [pair for pair in results if torchapi.in_memory(pair[0])]
        if len(held) < len(results) or not all(torchapi.in_memory(tensor) for tensor in given):
            for tensor, _ in held:
                self.taint(tensor)  # What autograd makes of nothing has no numbers that could be looked at.
            return
        exact = all(self.is_exact(tensor) for tensor in given) and not traits.random
        outputs = results[0][0] if results else None
        exact = exact and undefined_in(traits.name, args, kwargs, outputs) is None
        exact = exact and all(same_numbers(tensor, twin) for tensor, twin in results)
        whole = not any(is_float(tensor.dtype) for tensor in [*given, *(tensor for tensor, _ in results)])
        if not exact or not (whole or self._in_any_order(func, traits, doubled, results)):
            for tensor, _ in results:
                self.taint(tensor)

    def taint(self, tensor: torch.Tensor) -> None:
        """Note that a result is not known to be exact."""
        key = torchapi.storage_key(tensor)
        if key is None:
            self._objects[id(tensor)] = tensor
        else:
            self._tainted[key] = torchapi.StorageWeakRef(tensor.untyped_storage())

    def _in_any_order(
        self,
        func: Callable[..., Any],
        traits: Traits,
        doubled: tuple[Any, Any],
        results: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> bool:
        name = traits.name.removesuffix("_")
        if traits.view or traits.exact or name in SINGLE:
            return True
        if name == "div":
            return divides_by_powers_of_two(doubled[0])
        if name not in SUMS and name not in CONTRACTIONS:
            return False
        if any(tensor.device.type != "cpu" for tensor, _ in results) and "convolution" in name:
            return False  # A library may transform instead of add up.
        try:
            bounds = torchapi.tree_leaves(func(*absolute(doubled[0]), **absolute(doubled[1])))
        except Exception:  # noqa: BLE001 - without a bound it is not known to be exact
            return False
        floats = [
            leaf for leaf in torchapi.tree_leaves(doubled) if isinstance(leaf, torch.Tensor) and is_float(leaf.dtype)
        ]
        step = least_step_of(floats)
        for (tensor, _), bound in zip(results, bounds, strict=False):
            count = floats[0].numel() / max(1, tensor.numel()) if name == "mean" and floats else 1.0
            if tensor.dtype not in MANTISSA or not is_power_of_two(count):
                return False
            largest = float(bound.abs().max()) * count if bound.numel() else 0.0
            if not largest <= step * 2.0 ** MANTISSA[tensor.dtype]:
                return False
        return True


def same_numbers(tensor: torch.Tensor, twin: torch.Tensor) -> bool:
    """Tell whether a result holds the very numbers that float64 gives."""
    if tensor.shape != twin.shape:
        return False
    wide = tensor.to(twin.dtype)
    if not bool(((wide == twin) | (wide.isnan() & twin.isnan())).all()):
        return False
    # Float64 agrees with itself also where it has rounded; but then its numbers need all of their bits.
    return tensor.dtype not in ITS_OWN_TWIN or all(few_bits(part) for part in real_parts(tensor))


def real_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the real numbers that a result is made of."""
    if not tensor.is_complex():
        return [tensor]
    resolved = tensor.resolve_conj()
    return [resolved.real, resolved.imag]


def few_bits(values: torch.Tensor) -> bool:
    """Tell whether float64 numbers leave the last bits of their mantissas unused, as no rounded number does."""
    finite = values.detach()[torch.isfinite(values.detach())].double()
    whole = (torch.frexp(finite)[0] * 2.0 ** MANTISSA[torch.float64]).to(torch.int64)
    return bool((whole % 2**UNUSED == 0).all())


def absolute(tree: Any) -> Any:
    """Return arguments with the absolute values of floats: a sum of them bounds every partial sum."""
    return torchapi.tree_map(
        lambda leaf: leaf.abs() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, tree
    )


def divides_by_powers_of_two(arguments: tuple[Any, ...]) -> bool:
    """Tell whether every divisor is a power of two: then a product with the reciprocal is the same number."""
    if len(arguments) < 2:
        return False
    divisor = arguments[1]
    if not isinstance(divisor, torch.Tensor):
        divisor = torch.tensor(divisor, device="cpu")
    mantissa, _ = torch.frexp(divisor.double().abs())
    return bool((mantissa == 0.5).all())


def least_step_of(terms: list[torch.Tensor]) -> float:
    """Return a power of two that every term, and every product of two of them, is a multiple of."""
    steps = [step_of(term) for term in terms]
    products = [left * right for left, right in itertools.combinations(steps, 2)]
    return min([*steps, *products], default=1.0)


def step_of(values: torch.Tensor) -> float:
    """Return the greatest power of two that all values are multiples of."""
    finite = values[torch.isfinite(values) & (values != 0)].double().abs()
    if not finite.numel():
        return 1.0
    mantissa, exponent = torch.frexp(finite)
    whole = (mantissa * 2.0**53).to(torch.int64)
    lowest = torch.frexp((whole & -whole).double())[1] - 1
    return 2.0 ** int((exponent + lowest).min().item() - 53)


def is_power_of_two(number: float) -> bool:
    """Tell whether a number is a power of two."""
    return number > 0 and math.frexp(number)[0] == 0.5
