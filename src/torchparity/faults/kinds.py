"""The kinds of fault that can be planted, each a small function over what an operation would have returned.

A fault at an operation is `corrupt(operation, args, kwargs, size) -> result`; a fault at a graph
output is `corrupt(value, size) -> value`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchparity.torchapi import tree_map

Operation = Callable[..., Any]
Corrupt = Callable[[Operation, tuple[Any, ...], dict[str, Any], float], Any]

ANY = "any"
MATMULS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")
REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "var_mean", "logsumexp", "cumsum")
ORDERED = ("sub", "div", "pow", "rsub", "atan2")
NORMS = ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "native_group_norm",
         "_native_batch_norm_legit_functional", "_fused_rms_norm", "batch_norm_with_update", "rsqrt",
         "_batch_norm_with_update_functional")  # fmt: skip
INDEXING = ("index", "gather", "embedding", "index_select", "select", "slice", "scatter", "_embedding_bag")
SMOOTH = ("exp", "tanh", "sigmoid", "gelu", "silu", "erf", "log", "_softmax", "_log_softmax", "_safe_softmax",
          "gelu_backward", "tanh_backward", "sigmoid_backward", "_softmax_backward_data", "sin", "cos")  # fmt: skip
GELUS = ("gelu", "gelu_backward")
STEPS = ("relu", "threshold_backward", "leaky_relu", "leaky_relu_backward")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of fault: where it can stand, and what it does."""

    name: str
    summary: str
    corrupt: Any
    operations: tuple[str, ...] | str = ANY
    place: str = "operation"  # or "output", "mutation", "compile"
    size: float = 1e-3
    integers: bool = False


KINDS: dict[str, Fault] = {}


def fault(name: str, summary: str, **facts: Any) -> Callable[[Any], Any]:
    """Register a corruption as a kind of fault."""

    def register(corrupt: Any) -> Any:
        KINDS[name] = Fault(name=name, summary=summary, corrupt=corrupt, **facts)
        return corrupt

    return register


def fault_of_result(name: str, summary: str, **facts: Any) -> Callable[[Any], Any]:
    """Register a corruption of what an operation returned."""

    def register(function: Callable[[torch.Tensor, float], torch.Tensor]) -> Any:
        return fault(name, summary, **facts)(on_result(function))

    return register


def on_result(function: Callable[[torch.Tensor, float], torch.Tensor]) -> Corrupt:
    """Make a corruption of a call from a corruption of its (first float) result."""

    def corrupt(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], size: float) -> Any:
        result = operation(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return function(result, size)
        first, *rest = result
        return type(result)([function(first, size), *rest])

    return corrupt


def on_inputs(function: Callable[[torch.Tensor, float], torch.Tensor]) -> Corrupt:
    """Make a corruption of a call from a corruption of its float inputs."""

    def corrupt(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], size: float) -> Any:
        def change(leaf: Any) -> Any:
            floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() > 1
            return function(leaf, size) if floats else leaf

        changed = tree_map(change, (args, kwargs))
        return operation(*changed[0], **changed[1])

    return corrupt


def keep_bits(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to a mantissa of so many bits."""
    mantissa, exponent = torch.frexp(values.double())
    scale = float(2 ** (bits + 1))
    return torch.ldexp(torch.round(mantissa * scale) / scale, exponent).to(values.dtype)


def rms(values: torch.Tensor) -> torch.Tensor:
    """Root mean square, never zero."""
    return values.double().square().mean().sqrt().clamp(min=1e-30).to(values.dtype)


def edited(values: torch.Tensor, position: int, value: torch.Tensor | float) -> torch.Tensor:
    """Return a copy with one element changed."""
    if values.numel() == 0:
        return values
    copy = values.clone()
    flat = copy.reshape(-1)
    flat[position] = value
    return flat.reshape(values.shape).as_strided_(copy.size(), flat.reshape(values.shape).stride())


# --- precision -----------------------------------------------------------------------------------

for _name, _summary, _bits in (
    ("matmul_tf32", "a product whose inputs keep 10 bits of mantissa", 10),
    ("matmul_bf16", "a product whose inputs keep 7 bits of mantissa", 7),
):
    fault(_name, _summary, operations=MATMULS)(on_inputs(lambda values, _, bits=_bits: keep_bits(values, bits)))  # type: ignore[misc]


@fault_of_result("low_precision", "a result rounded to half of its mantissa")
def _low_precision(values: torch.Tensor, _: float) -> torch.Tensor:
    return keep_bits(values, 3 if values.element_size() == 2 else 11)


@fault_of_result("truncated", "a result truncated toward zero to 12 bits (3 in 16-bit floats)")
def _truncated(values: torch.Tensor, _: float) -> torch.Tensor:
    mantissa, exponent = torch.frexp(values.double())
    scale = 2.0**4 if values.element_size() == 2 else 2.0**13
    return torch.ldexp(torch.trunc(mantissa * scale) / scale, exponent).to(values.dtype)


@fault_of_result("fast_math", "a smooth function with a wave of relative error", operations=SMOOTH, size=1e-4)
def _fast_math(values: torch.Tensor, size: float) -> torch.Tensor:
    factor = 1 + (size if values.element_size() > 2 else 100 * size) * torch.sin(40 * values.double())
    return (values.double() * factor).to(values.dtype)


@fault_of_result("flushed", "values under a thousandth of the scale flushed to zero", size=1e-3)
def _flushed(values: torch.Tensor, size: float) -> torch.Tensor:
    return torch.where(values.abs() < size * rms(values), torch.zeros_like(values), values)


# --- scale and bias ------------------------------------------------------------------------------


def _scale(values: torch.Tensor, size: float) -> torch.Tensor:
    return (values.double() * (1 + size)).to(values.dtype)


fault_of_result("scale", "a result scaled by one part in a thousand", size=1e-3)(_scale)
fault_of_result("scale_tiny", "a result scaled by one part in a hundred thousand", size=1e-5)(_scale)
fault_of_result("scale_percent", "a result scaled by one percent", size=1e-2)(_scale)
fault_of_result("negated", "a result with the wrong sign")(lambda values, _: -values)
fault_of_result("zeroed", "a result that is never written")(lambda values, _: torch.zeros_like(values))
fault_of_result("doubled", "a result added twice, as a wrong accumulation does")(lambda values, _: values + values)


@fault_of_result("offset", "a hundredth of the scale added everywhere", size=1e-2)
def _offset(values: torch.Tensor, size: float) -> torch.Tensor:
    return values + size * rms(values)


@fault_of_result("clamped", "values cut at nine tenths of the largest")
def _clamped(values: torch.Tensor, _: float) -> torch.Tensor:
    limit = 0.9 * float(values.abs().max()) if values.numel() else 0.0
    return values.clamp(-limit, limit)


# --- single elements and places ------------------------------------------------------------------

fault_of_result("nan", "one element is NaN")(lambda values, _: edited(values, 0, float("nan")))
fault_of_result("inf", "one element is infinite")(lambda values, _: edited(values, -1, float("inf")))


@fault_of_result("wrong_element", "one element off by a tenth of the scale", size=0.1)
def _wrong_element(values: torch.Tensor, size: float) -> torch.Tensor:
    position = values.numel() * 2 // 3
    return edited(values, position, values.reshape(-1)[position] + size * rms(values)) if values.numel() else values


@fault_of_result("tail", "the last row left at zero, as a loop that ends early does")
def _tail(values: torch.Tensor, _: float) -> torch.Tensor:
    if values.dim() == 0 or values.numel() == 0:
        return torch.zeros_like(values)
    copy = values.clone()
    copy[-1] = 0
    return copy


@fault_of_result("repeated_row", "the second row holds the first, as a race does")
def _repeated_row(values: torch.Tensor, _: float) -> torch.Tensor:
    if values.dim() == 0 or values.shape[0] < 2:
        return values
    copy = values.clone()
    copy[1] = values[0]
    return copy


@fault_of_result("off_by_one", "an index shifted by one", operations=INDEXING)
def _off_by_one(values: torch.Tensor, _: float) -> torch.Tensor:
    return values.roll(1, 0) if values.dim() else values


@fault_of_result("integer_off_by_one", "one integer too large by one", integers=True)
def _integer_off_by_one(values: torch.Tensor, _: float) -> torch.Tensor:
    if not values.numel():
        return values
    first = values.reshape(-1)[0]
    return edited(values, 0, ~first if values.dtype == torch.bool else first + 1)


# --- wrong formulas ------------------------------------------------------------------------------


@fault("dropped_term", "the last term of a product's inner sum is left out", operations=MATMULS)
def _dropped_term(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    matrices = [index for index, value in enumerate(args) if isinstance(value, torch.Tensor) and value.dim() > 1]
    left = args[matrices[-2] if len(matrices) > 1 else matrices[0]].clone()
    left[..., -1] = 0
    position = matrices[-2] if len(matrices) > 1 else matrices[0]
    return operation(*(left if index == position else value for index, value in enumerate(args)), **kwargs)


@fault("dropped_last", "a reduction leaves out its last row", operations=REDUCTIONS)
def _dropped_last(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    values = args[0].clone()
    values.reshape(-1)[-max(1, values.numel() // 50) :] = 0
    return operation(values, *args[1:], **kwargs)


@fault("swapped_operands", "the operands of an ordered operation change places", operations=ORDERED)
def _swapped_operands(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    result = operation(*args, **kwargs)
    if len(args) < 2 or not isinstance(args[1], torch.Tensor):
        return -result
    swapped = operation(args[1], args[0], *args[2:], **kwargs)
    return swapped.to(result.dtype).reshape(result.shape)


@fault("wrong_epsilon", "a normalisation with its epsilon a hundred times too large", operations=NORMS)
def _wrong_epsilon(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    values = args[0]
    if len(args) == 1:  # rsqrt: the epsilon was added before
        return operation(values + 1e-3 * values.abs().mean(), **kwargs)
    place = max(index for index, value in enumerate(args) if isinstance(value, float))
    larger = max(1e-3, 100 * args[place])
    return operation(*(larger if index == place else value for index, value in enumerate(args)), **kwargs)


@fault("wrong_gelu", "the tanh formula of gelu in place of the exact one, or the reverse", operations=GELUS)
def _wrong_gelu(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    approximate = "none" if kwargs.get("approximate", "none") == "tanh" else "tanh"
    return operation(*args, **{**kwargs, "approximate": approximate})


@fault("shifted_step", "a kink at a hundredth of the scale and not at zero", operations=STEPS, size=1e-2)
def _shifted_step(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    place = 1 if len(args) > 1 and isinstance(args[1], torch.Tensor) else 0
    moved = args[place] - size * rms(args[place])
    return operation(*(moved if index == place else value for index, value in enumerate(args)), **kwargs)


@fault_of_result("transposed", "a square result stored transposed", operations=MATMULS)
def _transposed(values: torch.Tensor, _: float) -> torch.Tensor:
    square = values.dim() > 1 and values.shape[-1] == values.shape[-2]
    return values.mT.contiguous() if square else values.flip(-1)


@fault("nondeterministic", "right every other time", size=0.05)
def _nondeterministic(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    if next(TURNS) % 2 == 0:
        return operation(*args, **kwargs)
    return KINDS["offset"].corrupt(operation, args, kwargs, size)


TURNS = itertools.count()


# --- what leaves the graph -----------------------------------------------------------------------


@fault("wrong_dtype", "an output of another dtype", place="output")
def _wrong_dtype(value: torch.Tensor, size: float) -> torch.Tensor:
    return value.to(torch.float64 if value.dtype == torch.float32 else torch.float32)


@fault("wrong_stride", "an output with other strides", place="output")
def _wrong_stride(value: torch.Tensor, size: float) -> torch.Tensor:
    long = [axis for axis, length in enumerate(value.shape) if length > 1]
    if len(long) > 1:
        return value.transpose(long[0], long[-1]).contiguous().transpose(long[0], long[-1])
    if not long:
        return value
    every_other = [slice(None, None, 2) if axis == long[0] else slice(None) for axis in range(value.dim())]
    return value.repeat_interleave(2, long[0])[tuple(every_other)]


@fault("wrong_shape", "an output with a dimension too many", place="output")
def _wrong_shape(value: torch.Tensor, size: float) -> torch.Tensor:
    return value.unsqueeze(0)


@fault("lost_mutation", "a buffer or input that is not written back", place="mutation")
def _lost_mutation(updated: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    return original


@fault("stale_buffer", "a buffer that goes half of the way only", place="mutation")
def _stale_buffer(updated: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    if not updated.is_floating_point():
        return original
    return original + (updated - original) / 2


# --- things that do not return -------------------------------------------------------------------


@fault("raises", "an exception while running")
def _raises(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    raise RuntimeError("planted: this kernel raises")


@fault("compile_raises", "an exception while compiling", place="compile")
def _compile_raises() -> None:
    raise RuntimeError("planted: this compiler raises")


@fault("hang", "a kernel that never returns")
def _hang(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    while True:
        time.sleep(1)


@fault("segfault", "a kernel that reads address zero")
def _segfault(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    return ctypes.string_at(0)


@fault("exits", "a kernel that ends the process")
def _exits(operation: Operation, args: Any, kwargs: Any, size: float) -> Any:
    os._exit(3)
