"""Operators and graphs: schemas, tags, custom operators, what AOTAutograd knows of a graph."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchparity.torchapi.door import lookup
from torchparity.torchapi.tensors import tensors_in, tree_leaves

OpOverload = torch._ops.OpOverload
HigherOrderOperator = torch._ops.HigherOrderOperator
# `iadd` and its kin.
WRITING_OPERATORS = {name for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__")}
WRITING_OPERATORS -= {"index", "inv", "invert"}


def plain_copy(graph: torch.fx.Graph, names: Mapping[torch.fx.Node, str] | None = None) -> torch.fx.Graph:
    """Return a copy of a graph whose inputs and outputs are flat, whatever structure was put around it.

    `names` says what the copy calls its inputs.
    """
    copied = torch.fx.Graph()
    inputs: dict[torch.fx.Node, torch.fx.Node] = {}
    for node, name in (names or {}).items():
        inputs[node] = copied.placeholder(name)
        inputs[node].meta = dict(node.meta)
    output = copied.graph_copy(graph, inputs, return_output_node=True)
    copied.output(output[0] if isinstance(output, tuple) else output)
    return copied


def end_of_graph(graph_module: torch.fx.GraphModule) -> dict[str, Any] | None:
    """Return why Dynamo ended a graph where it did, and the user's line; None where the frame simply returned."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return None
    frames = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reason.user_stack]
    return {"reason": str(reason.reason).strip().splitlines()[0], "line": frames[-1] if frames else ""}


def no_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Call torch without the modes that watch its functions hearing of it."""
    made: contextlib.AbstractContextManager[Any] = lookup("torch._C.DisableTorchFunction")()
    return made


def no_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """Work on tensors as they are, outside every mode that may be watching."""
    context: contextlib.AbstractContextManager[Any] = lookup("torch.utils._python_dispatch._disable_current_modes")()
    return context


def backend_function(name: str) -> Callable[..., Any]:
    """Return the backend of a name."""
    backend: Callable[..., Any] = lookup("torch._dynamo.backends.registry.lookup_backend")(name)
    return backend


BUILTIN_NAMESPACES = (
    "aten", "prim", "prims", "inductor", "higher_order", "quantized", "quantized_decomposed", "mkldnn", "mkl",
    "onednn", "_c10d_functional", "c10d", "rngprims", "debugprims", "profiler", "_quantized", "symm_mem", "streams",
    "sparse", "_inductor_test", "dynamo", "bundled_autograd_cache", "flex_lib", "flex_gemm",
)  # fmt: skip


COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional")
# Not collectives: two ranks talk, or none does.
ONE_SIDED = ("send", "recv_", "recv_any_source_", "wait_tensor", "_wrap_tensor_autograd")


def is_builtin_namespace(namespace: str) -> bool:
    """Tell whether torch itself registers the operators of a namespace."""
    return namespace in BUILTIN_NAMESPACES


def operator_module(operator: OpOverload) -> str | None:
    """Return the module that registers a custom operator, where torch remembers it."""
    name = base_name(operator)
    definitions = lookup("torch._library.custom_ops.OPDEFS")
    if name in definitions:
        module: str = definitions[name]._init_fn.__module__
        return module
    namespace = name.split("::")[0]
    return namespace if importlib.util.find_spec(namespace) is not None else None


def is_random(operator: OpOverload) -> bool:
    """Tell whether an operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def draws(target: Any) -> bool:
    """Tell whether what a node calls draws random numbers, as far as its name or its tag tells."""
    if isinstance(target, OpOverload):
        return is_random(target)
    return bool(re.search(r"dropout|rand|bernoulli|normal_|uniform_|multinomial|exponential_", str(target)))


def written_arguments(operator: OpOverload) -> tuple[int | str, ...]:
    """Return the positions (names, for keyword-only ones) of the arguments an operator writes to."""
    written: list[int | str] = []
    for position, argument in enumerate(operator._schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    return tuple(written)


def takes(operator: OpOverload, *names: str) -> bool:
    """Tell whether an operator has an argument of one of these names."""
    return any(argument.name in names for argument in operator._schema.arguments)


def given_argument(operator: OpOverload, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a call gives for an argument, by place, by name or by default; None where there is no such one."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    return None


def has_schema(target: Any) -> bool:
    """Tell whether a call is to an operator whose arguments are known."""
    return isinstance(target, OpOverload)


def required_arguments(operator: Any) -> int:
    """Return how many arguments by position an operator cannot do without."""
    arguments = operator._schema.arguments
    return max((place + 1 for place, entry in enumerate(arguments) if not entry.has_default_value()), default=0)


def target_name(target: Any) -> str:
    """Return the name of what a node calls, without namespace and overload: `relu`."""
    return (
        base_name(target).split("::")[-1]
        if isinstance(target, OpOverload)
        else str(getattr(target, "__name__", target))
    )


def base_name(operator: OpOverload) -> str:
    """Return `aten::add` for `aten.add.Tensor`."""
    name: str = operator._schema.name
    return name


def higher_order_operators() -> list[HigherOrderOperator]:
    """Return every higher-order operator that is registered."""
    return list(lookup("torch._ops._higher_order_ops").values())


def higher_order_kernel(operator: HigherOrderOperator) -> Callable[..., Any] | None:
    """Return the plain implementation of a higher-order operator, where it has one."""
    key = lookup("torch._C.DispatchKey").CompositeExplicitAutograd
    kernel: Callable[..., Any] | None = operator.py_kernels.get(key)
    return kernel


def in_backward() -> bool:
    """Tell whether autograd is calling, on its way back."""
    return _autograd_node()() is not None


@functools.cache
def _autograd_node() -> Callable[[], Any]:
    """Return what is asked for every operation: the door takes its time."""
    found: Callable[[], Any] = lookup("torch._C._current_autograd_node")
    return found


class _Counting(TorchDispatchMode):
    """Counts the operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.count += not (getattr(func, "is_view", False) or getattr(func, "namespace", "") == "prim")
        return func(*args, **(kwargs or {}))


def operations_of(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> int:
    """Return how many operations a graph runs in eager; of one that does not run on shapes alone, how many it has."""
    counted = counted_by_call(graph_module)
    return counted_whole(graph_module, inputs) if counted is None else counted


def counted_whole(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> int:
    """Count a graph's operations by running it on shapes alone."""
    fake_mode = lookup("torch._subclasses.FakeTensorMode")(allow_non_fake_inputs=True)
    counting = _Counting()
    try:
        with no_dispatch_modes(), fake_mode:
            held = [fake_mode.from_tensor(entry) if isinstance(entry, torch.Tensor) else entry for entry in inputs]
            with counting:
                graph_module(*held)
    except Exception:  # noqa: BLE001 - it is a number to show, and the nodes tell nearly the same
        return sum(node.op in ("call_function", "call_method", "call_module") for node in graph_module.graph.nodes)
    return counting.count


def counted_by_call(graph_module: torch.fx.GraphModule) -> int | None:
    """Count a Dynamo graph's operations, each kind of call once: a model's blocks are alike, and shapes take long.

    None where nodes change something or tell no shapes: such a graph has to be run as a whole.
    """
    known: dict[Any, int] = {}
    total = 0
    for node in graph_module.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            if node.op == "call_module":
                return None
            continue
        try:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda entry: entry.meta["example_value"])
            key = (node.op, node.target, _described((args, kwargs)))
            if key not in known:
                known[key] = _counted_call(node, args, kwargs)
        except Exception:  # noqa: BLE001 - the whole graph tells what a node does not
            return None
        total += known[key]
    return total


def _counted_call(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Count the operations of one call on shapes alone; raise where it would change something."""
    name = str(node.target) if node.op == "call_method" else str(getattr(node.target, "__name__", "_"))
    if name.endswith("_") or name == "setitem" or kwargs.get("inplace") or "out" in kwargs:
        raise ValueError(f"{name} writes to what it is given")
    if getattr(node.target, "__module__", "") == "_operator" and name in WRITING_OPERATORS:
        raise ValueError(f"{name} writes to what it is given")
    tensors = tensors_in((args, kwargs)) + tensors_in(node.meta["example_value"])
    if not tensors:
        raise ValueError(f"{name} has no tensors: it may be a switch")
    fake_mode = next(tensor.fake_mode for tensor in tensors)  # type: ignore[attr-defined]
    counting = _Counting()
    with no_dispatch_modes(), fake_mode, counting:
        if node.op == "call_method":
            getattr(args[0], name)(*args[1:], **kwargs)
        else:
            node.target(*args, **kwargs)  # type: ignore[operator]
    return counting.count


def _described(value: Any) -> Any:
    """Return what tells arguments apart that do not call the same operations; raise where sizes are symbols."""
    if isinstance(value, torch.Tensor):
        if any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride())):
            raise ValueError("asking would guard a symbol")
        return (*value.shape, "by", *value.stride(), value.dtype, value.device, value.requires_grad)
    if isinstance(value, tuple | list):
        return tuple(_described(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _described(item)) for name, item in value.items())
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    hash(value)
    return value


def is_collective(operator: OpOverload) -> bool:
    """Tell whether an operator is one that every rank must call: a reduction, a gathering, a broadcast."""
    return operator.namespace in COLLECTIVE_NAMESPACES and base_name(operator).split("::")[-1] not in ONE_SIDED


def wait_for_collective(outputs: Any) -> None:
    """Wait until a collective has written its results."""
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, torch.ScriptObject):
            leaf.wait()  # type: ignore[attr-defined]
        elif isinstance(leaf, torch.Tensor):
            lookup("torch.ops._c10d_functional.wait_tensor")(leaf)


def _forward_metadata() -> Any:
    context = lookup("torch._guards.TracingContext").try_get()
    return getattr(context, "fw_metadata", None)


def mutated_inputs() -> list[int]:
    """Return, while a forward graph is being compiled, which of its inputs its first outputs are written to."""
    metadata = _forward_metadata()
    return list(metadata.mutated_inp_runtime_indices) if metadata is not None else []


def visible_outputs(count: int) -> int:
    """Return how many of a forward graph's `count` outputs the user sees, written inputs included."""
    metadata = _forward_metadata()
    if metadata is None:
        return count
    seen = len(metadata.mutated_inp_runtime_indices) + len(metadata.output_info)
    return min(count, seen)
