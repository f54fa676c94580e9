"""Inside inductor: its decompositions, passes, lowerings and code, watched, left out or replaced."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch

from torchparity.torchapi.compilers import boxed
from torchparity.torchapi.door import lookup
from torchparity.torchapi.operators import target_name


def inductor_compile(graph_module: Any, inputs: list[Any], decompositions: Any = None) -> Callable[..., Any]:
    """Compile a graph of Dynamo's with inductor, with a table of decompositions of one's own."""
    compiled: Callable[..., Any] = lookup("torch._inductor.compile_fx.compile_fx")(
        graph_module, inputs, decompositions=decompositions
    )
    return compiled


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what inductor takes operators apart by."""
    table: dict[Any, Callable[..., Any]] = lookup("torch._inductor.decomposition.select_decomp_table")()
    return table


def custom_pass(function: Callable[[Any], None]) -> Any:
    """Return a function on graphs as inductor wants its users' passes."""
    kind = lookup("torch._inductor.custom_graph_pass.CustomGraphPass")
    made = type("Pass", (kind,), {"__call__": lambda self, graph: function(graph), "uuid": lambda self: None})
    return made()


@contextlib.contextmanager
def replaced_lowering(operation: str, site: int | None, factor: float) -> Iterator[None]:
    """Multiply what inductor's lowering of an operation gives, at one of its uses or at all."""
    table = lookup("torch._inductor.lowering.lowerings")
    multiply = table[torch.ops.aten.mul.Tensor]
    uses = iter(range(1 << 30))
    before = {target: function for target, function in table.items() if target_name(target) == operation}

    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def lower(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return multiply(result, factor) if site is None or next(uses) == site else result

        return lower

    table.update({target: wrong(function) for target, function in before.items()})
    try:
        yield
    finally:
        table.update(before)


@contextlib.contextmanager
def replaced_vector_code(operation: str, factor: float) -> Iterator[None]:
    """Multiply what inductor's vectorised C++ code computes for an operation; its scalar code stays right."""
    overrides = lookup("torch._inductor.codegen.cpp.CppVecOverrides")
    original = inspect.getattr_static(overrides, operation)
    function = getattr(overrides, operation)

    def wrong(*args: Any, **kwargs: Any) -> str:
        code = function(*args, **kwargs)
        return f"(({code}) * decltype({code})(static_cast<float>({factor!r})))"

    setattr(overrides, operation, staticmethod(wrong))
    try:
        yield
    finally:
        setattr(overrides, operation, original)


@contextlib.contextmanager
def watched_passes(hear: Callable[[str, str, Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Call `hear(stage, name, graph_module, apply)` in place of every pass of inductor; it calls `apply()` itself."""
    observer = lookup("torch.fx.passes.graph_transform_observer.GraphTransformObserver")
    originals = {name: getattr(observer, name) for name in ("apply_gm_pass", "apply_graph_pass")}

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(self: Any, function: Callable[..., Any]) -> Any:
            return hear(self.subsystem or "passes", self.passname, self.gm, lambda: original(self, function))

        return apply

    for name, original in originals.items():
        setattr(observer, name, replaced(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(observer, name, original)


@contextlib.contextmanager
def watched_code(hear: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Call `hear(graph_module, compile)` in place of inductor's last step; it returns what is to be called."""
    with _heard("_compile_fx_inner", hear):
        yield


@contextlib.contextmanager
def watched_graphs(hear: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Call `hear(graph_module, compile)` in place of inductor as a whole; it returns what is to be called."""
    with _heard("compile_fx", hear):
        yield


@contextlib.contextmanager
def _heard(name: str, hear: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Put a listener in the place of a function of inductor's; the function may call itself unheard."""
    module = lookup("torch._inductor.compile_fx")
    original = getattr(module, name)
    inside = False

    def run(graph_module: Any, *args: Any, **options: Any) -> Any:
        nonlocal inside
        if inside:
            return original(graph_module, *args, **options)

        def compile_graph() -> Any:
            nonlocal inside
            inside = True
            try:
                return original(graph_module, *args, **options)
            finally:
                inside = False

        return hear(graph_module, compile_graph)

    setattr(module, name, run)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextlib.contextmanager
def graphs_run_eagerly() -> Iterator[None]:
    """Let inductor make its graphs, decomposed and with what its early passes made of them, and run these eagerly."""
    with watched_code(lambda graph_module, compile_graph: boxed(graph_module.forward)):
        yield


def _traced_apart() -> dict[str, Any]:
    """Return the operators that AOTAutograd takes apart while it traces, by Python kernels of torch's, by name."""
    lookup("torch._decomp")
    keys = [getattr(lookup("torch._C.DispatchKey"), name) for name in ("CompositeImplicitAutograd", "Autograd")]
    packets = [entry for entry in vars(torch.ops.aten).values() if hasattr(entry, "overloads")]
    operators = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return {str(entry): entry for entry in operators if any(key in entry.py_kernels for key in keys)}


def traced_apart() -> list[str]:
    """Return the names of the operators that AOTAutograd takes apart while it traces."""
    return sorted(_traced_apart())


@contextlib.contextmanager
def traced_whole(names: Container[str]) -> Iterator[None]:
    """Let AOTAutograd trace some operators as the C++ of eager has them."""
    keys = [getattr(lookup("torch._C.DispatchKey"), name) for name in ("CompositeImplicitAutograd", "Autograd")]
    removed: list[tuple[Any, Any, Any]] = []
    for name, operator in _traced_apart().items():
        if name in names:
            removed += [(operator, key, operator.py_kernels.pop(key)) for key in keys if key in operator.py_kernels]
            operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, key, kernel in removed:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()


@contextlib.contextmanager
def watched_steps(disabled: Container[tuple[str, str, int]], met: list[tuple[str, str, int]]) -> Iterator[None]:
    """Note every step that torch's own bisector could leave out, and leave out those that are named.

    A step is a stage (`pre_grad_passes`, `lowerings`, ...), what is done there, and how often that was done before.
    """
    bisector = lookup("torch._inductor.compiler_bisector.CompilerBisector")
    original = inspect.getattr_static(bisector, "disable_subsystem")
    enabled = bisector.bisection_enabled
    counts: dict[tuple[str, str], int] = {}

    def disable(cls: Any, backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        label = debug_info() if debug_info is not None else subsystem
        number = counts.get((subsystem, label), 0)
        counts[(subsystem, label)] = number + 1
        met.append((subsystem, label, number))
        return met[-1] in disabled

    bisector.disable_subsystem = classmethod(disable)
    bisector.bisection_enabled = True  # So that no graph comes from a cache.
    try:
        yield
    finally:
        bisector.disable_subsystem = original
        bisector.bisection_enabled = enabled


@contextlib.contextmanager
def heard_kernels(hear: Callable[[str, list[Any]], None]) -> Iterator[None]:
    """Call `hear(name, nodes)` for every kernel that inductor writes or calls, with the nodes of its graph in it."""
    module = lookup("torch._inductor.debug")
    name = "set_kernel_post_grad_provenance_tracing"
    original = lookup(f"torch._inductor.debug.{name}")

    @functools.wraps(original)
    def noted(schedule: Any, kernel: str, *args: Any, **options: Any) -> Any:
        parts = [getattr(part, "node", None) for part in schedule] if isinstance(schedule, list) else [schedule]
        nodes = dict.fromkeys(node for part in parts for node in getattr(part, "origins", ()))
        hear(str(kernel), list(nodes))
        return original(schedule, kernel, *args, **options)

    holders = [module, *(lookup(f"torch._inductor.codegen.{writer}") for writer in ("triton", "cpp"))]
    holders = [holder for holder in holders if getattr(holder, name, None) is original]
    for holder in holders:
        setattr(holder, name, noted)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, original)
