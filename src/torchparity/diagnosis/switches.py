"""Settings that turn a part of the compiler off, and what each of them turns off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchparity import torchapi
from torchparity.request import Request

# The area whose settings a mode and options of torch.compile change, for one model; what is set for all gives way.
INDUCTOR = "inductor."


@dataclass(frozen=True)
class Switch:
    """A setting, the value that turns something off, and what that is."""

    key: str
    value: Any
    what: str


SWITCHES = (
    Switch("inductor.cpp.simdlen", 1, "vectorised code"),
    Switch("inductor.cpp.enable_loop_tail_vec", False, "vectorised loop tails"),
    Switch("inductor.cpp.enable_tiling_heuristics", False, "the choice of tiles"),
    Switch("inductor.cpp.threads", 1, "parallel loops"),
    Switch("inductor.cpp.weight_prepack", False, "packed weights"),
    Switch("inductor.cpp.enable_floating_point_contract_flag", "off", "fused multiply and add"),
    Switch("inductor.cpp.enable_unsafe_math_opt_flag", False, "unsafe floating-point rewriting"),
    Switch("inductor.max_fusion_size", 1, "fusion of operations into one kernel"),
    Switch("inductor.epilogue_fusion", False, "fusion after matrix products"),
    Switch("inductor.prologue_fusion", False, "fusion before matrix products"),
    Switch("inductor.loop_ordering_after_fusion", False, "reordering of loops"),
    Switch("inductor.reorder_for_locality", False, "reordering of operations"),
    Switch("inductor.split_reductions", False, "split reductions"),
    Switch("inductor.inplace_buffers", False, "buffers written in place"),
    Switch("inductor.allow_buffer_reuse", False, "reuse of buffers"),
    Switch("inductor.layout_optimization", False, "changed memory layouts"),
    Switch("inductor.comprehensive_padding", False, "padded strides"),
    Switch("inductor.constant_and_index_propagation", False, "propagation of constants and indices"),
    Switch("inductor.emulate_precision_casts", True, "higher precision inside kernels"),
    Switch("inductor.fallback_random", True, "random numbers of its own"),
    Switch("inductor.triton.cudagraphs", False, "CUDA graphs"),
    Switch("inductor.triton.persistent_reductions", False, "persistent reductions"),
    Switch("inductor.triton.cooperative_reductions", False, "cooperative reductions"),
    Switch("inductor.triton.autotune_pointwise", False, "the choice of block sizes"),
    Switch("inductor.triton.max_tiles", 1, "blocks of several dimensions"),
    Switch("inductor.triton.multi_kernel", 0, "several kernels for one reduction"),
    Switch("inductor.triton.codegen_upcast_to_fp32", False, "higher precision inside kernels"),
    Switch("inductor.coordinate_descent_tuning", False, "coordinate descent over block sizes and warps"),
    Switch("inductor.max_autotune", False, "the choice of kernels by time"),
    Switch("inductor.max_autotune_gemm", False, "the choice of matrix products by time"),
    Switch("inductor.max_autotune_pointwise", False, "the choice of pointwise kernels by time"),
    Switch("inductor.combo_kernels", False, "kernels put together side by side"),
    Switch("inductor.benchmark_fusion", False, "fusion by time"),
    Switch("inductor.freezing", False, "frozen weights"),
    Switch("functorch.cse", False, "common subexpressions"),
)


def settings_in(request: Request) -> dict[str, Any]:
    """Return the settings that a request is compiled with: those of its mode and options win, as they do in torch."""
    return {**request.config, **{INDUCTOR + name: value for name, value in _inner(request).items()}}


def turned(request: Request, config: Mapping[str, Any]) -> Request:
    """Return a request with other settings, which hold even where its mode or its options say something else."""
    inner = _inner(request)
    if not inner:
        return replace(request, config={**request.config, **config})
    ours = {key: value for key, value in config.items() if key.startswith(INDUCTOR)}
    others = {key: value for key, value in config.items() if key not in ours}
    options = {**inner, **{key.removeprefix(INDUCTOR): value for key, value in ours.items()}}
    return replace(request, mode=None, options=options, config={**request.config, **others})


def _inner(request: Request) -> dict[str, Any]:
    """Return the settings of inductor that the mode and the options of a request stand for."""
    said = request.mode is not None or request.options
    return torchapi.inductor_settings(request.mode, request.options) if request.backend == "inductor" and said else {}


def usable(config: Mapping[str, Any], device: str = "cpu") -> Iterator[Switch]:
    """Yield the switches that this torch knows, and that would change something in code for a device."""
    others = "inductor.triton." if device == "cpu" else "inductor.cpp."
    for switch in SWITCHES:
        area, name = switch.key.split(".", 1)
        if switch.key.startswith(others):
            continue
        current: Any = torchapi.config_module(area)
        for part in name.split("."):
            current = getattr(current, part, MISSING)
        current = config.get(switch.key, current)
        if current is not MISSING and current != switch.value:
            yield switch


MISSING = object()
