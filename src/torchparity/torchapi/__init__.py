"""The one door to private torch: every private name that torchparity uses is looked up here, and nowhere else.

A missing name is one clear error that tells the torch version. Lookups are lazy, so importing
torchparity imports no compiler.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from torchparity.errors import TorchVersionError

__all__ = ["StorageWeakRef", "TorchDispatchMode"]

OpOverload = torch._ops.OpOverload
HigherOrderOperator = torch._ops.HigherOrderOperator


def lookup(path: str) -> Any:
    """Return the object at a dotted path such as `torch._inductor.config.patch`."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        try:
            for name in parts[split:]:
                found = getattr(found, name)
        except AttributeError:
            break
        return found
    raise TorchVersionError(
        f"torch {torch.__version__} has no `{path}`, which torchparity stands on",
        hint="torchparity works with torch 2.11 to 2.13: install one of these",
    )


# --- compilers -----------------------------------------------------------------------------------

CONFIG_MODULES = {
    "inductor": "torch._inductor.config",
    "dynamo": "torch._dynamo.config",
    "functorch": "torch._functorch.config",
}


# What a compilation imports when it first needs it. A version that has moved one of them is slower, not broken.
COMPILER_MODULES = """
    functorch.compile
    torch._dynamo.backends.debugging
    torch._dynamo.dce_extra_outputs
    torch._dynamo.repro.after_dynamo
    torch._export.db.logging
    torch._export.passes._node_metadata_hook
    torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass
    torch._functorch._aot_autograd.subclass_codegen
    torch._higher_order_ops.passes.inline_invoke_subgraph
    torch._inductor.bounds
    torch._inductor.choices
    torch._inductor.codegen.cpp
    torch._inductor.codegen.memory_planning
    torch._inductor.codegen.segmented_tree
    torch._inductor.compile_fx
    torch._inductor.extern_node_serializer
    torch._inductor.hooks
    torch._inductor.kernel_template_choice
    torch._inductor.select_algorithm
    torch._subclasses.schema_check_mode
    torch.export._leakage_detection_utils
    torch.export._trace
    torch.export._unlift
    torch.fx.experimental.validator
    torch.utils._cpp_embed_headers
""".split()
# Environment that makes a process compile every graph for itself.
NO_GRAPH_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
# Built, or probed, at the first compilation; the first by `joint_graph`, `post_grad` or `pre_grad`.
PATTERN_TABLES = "torch._inductor.fx_passes.{}.lazy_init"
VECTOR_INSTRUCTIONS = "torch._inductor.cpu_vec_isa.pick_vec_isa"
CACHE_FOLDER = "torch._inductor.runtime.cache_dir_utils.cache_dir"


def list_backends() -> list[str]:
    """Return every backend name that torch.compile knows, debug ones included."""
    return sorted(lookup("torch._dynamo.list_backends")(None))


def config_module(area: str) -> Any:
    """Return the configuration module of `inductor`, `dynamo` or `functorch`."""
    return lookup(CONFIG_MODULES[area])


@contextlib.contextmanager
def patched_config(settings: Mapping[str, Any]) -> Iterator[None]:
    """Apply settings such as `inductor.fallback_random` for the length of the context."""
    with contextlib.ExitStack() as stack:
        for key, value in settings.items():
            area, name = key.split(".", 1)
            stack.enter_context(config_module(area).patch({name: value}))
        yield


def fresh_compiler_cache() -> contextlib.AbstractContextManager[Any]:
    """Give the compiler an empty cache folder for the length of the context."""
    context: contextlib.AbstractContextManager[Any] = lookup("torch._inductor.utils.fresh_cache")()
    return context


def dynamo_repro_settings() -> dict[str, Any]:
    """Return the settings that torch's own accuracy check obeys."""
    settings = config_module("dynamo")
    names = ("repro_tolerance", "same_two_models_use_fp64")
    return {name: getattr(settings, name) for name in names}


def graphs_compiled() -> int:
    """Return how many graphs Dynamo has captured in this process."""
    return int(lookup("torch._dynamo.utils.counters")["stats"]["unique_graphs"])


def is_compile_failure(error: BaseException) -> bool:
    """Tell whether an exception comes from compiling, not from running what was compiled."""
    kinds = [lookup("torch._dynamo.exc.TorchDynamoException")]
    kinds.append(lookup("torch._inductor.exc.InductorError"))
    return isinstance(error, tuple(kinds))


def inner_failure(error: BaseException) -> BaseException:
    """Return what a compiler failure wraps: the innermost exception that says what went wrong."""
    inner = getattr(error, "inner_exception", None)
    return inner_failure(inner) if isinstance(inner, BaseException) else error


def aot_backend(*, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[[Any, list[Any]], Any]:
    """Return a backend that hands forward and backward ATen graphs to two compilers, split as aot_eager splits them."""
    build = lookup("torch._dynamo.backends.common.aot_autograd")
    partition = lookup("functorch.compile.min_cut_rematerialization_partition")
    backend: Callable[[Any, list[Any]], Any] = build(fw_compiler=forward, bw_compiler=backward, partition_fn=partition)
    return backend


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Give a function the calling convention that AOTAutograd wants: one list, emptied by the callee."""
    make: Callable[[list[Any]], Any] = lookup("functorch.compile.make_boxed_func")(function)
    return make


def compile_with_inductor(graph_module: Any, inputs: list[Any], inner_compile: Any) -> Any:
    """Run the whole of inductor with another function in place of its last step."""
    # A graph that was compiled before would come from the cache, whatever the last step is.
    with patched_config({"functorch.enable_autograd_cache": False}):
        return lookup("torch._inductor.compile_fx.compile_fx")(graph_module, inputs, inner_compile=inner_compile)


def inductor_inner_compile() -> Callable[..., Any]:
    """Return inductor's last step: one ATen graph in, one callable out."""
    inner: Callable[..., Any] = lookup("torch._inductor.compile_fx.compile_fx_inner")
    return inner


def inductor_settings(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that torch.compile turns a mode and options for inductor into."""
    return dict(lookup("torch._TorchCompileInductorWrapper")(mode, dict(options), None).config)


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Turn oneDNN off. (`torch.backends.mkldnn.flags` does, but warns about Intel GPUs on every use.)"""
    enabled = lookup("torch._C._get_mkldnn_enabled")()
    switch = lookup("torch._C._set_mkldnn_enabled")
    switch(False)
    try:
        yield
    finally:
        switch(enabled)


# --- tensors and storages ------------------------------------------------------------------------


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's storage, or None where it has none (sparse, wrappers)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is torch's own class with a strided layout and a storage."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def is_wrapper(tensor_type: type) -> bool:
    """Tell whether a tensor class wraps other tensors and takes operations apart itself."""
    return hasattr(tensor_type, "__tensor_flatten__")


def pytree_children(value: Any) -> list[Any] | None:
    """Return the children of a value whose class is registered as a pytree node, else None."""
    registry = lookup("torch.utils._pytree.SUPPORTED_NODES")
    if type(value) not in registry:
        return None
    return list(registry[type(value)].flatten_fn(value)[0])


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of a pytree."""
    return lookup("torch.utils._pytree.tree_map")(function, tree)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a pytree, in order."""
    leaves: list[Any] = lookup("torch.utils._pytree.tree_leaves")(tree)
    return leaves


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


# --- shards of tensors and modules ---------------------------------------------------------------


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


# --- graphs --------------------------------------------------------------------------------------


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


# --- operators -----------------------------------------------------------------------------------


def is_random(operator: OpOverload) -> bool:
    """Tell whether an operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def draws(target: Any) -> bool:
    """Tell whether what a node calls draws random numbers, as far as its name or its tag tells."""
    if isinstance(target, OpOverload):
        return is_random(target)
    return bool(re.search(r"dropout|rand|bernoulli|normal_|uniform_|multinomial|exponential_", str(target)))


def is_pointwise(operator: OpOverload) -> bool:
    """Tell whether an operator works element by element."""
    return torch.Tag.pointwise in operator.tags


def written_arguments(operator: OpOverload) -> tuple[int | str, ...]:
    """Return the positions (names, for keyword-only ones) of the arguments an operator writes to."""
    written: list[int | str] = []
    for position, argument in enumerate(operator._schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    return tuple(written)


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


def base_name(operator: OpOverload) -> str:
    """Return `aten::add` for `aten.add.Tensor`."""
    name: str = operator._schema.name
    return name


def higher_order_kernel(operator: HigherOrderOperator) -> Callable[..., Any] | None:
    """Return the plain implementation of a higher-order operator, where it has one."""
    key = lookup("torch._C.DispatchKey").CompositeExplicitAutograd
    kernel: Callable[..., Any] | None = operator.py_kernels.get(key)
    return kernel


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


from torchparity.torchapi import dynamo as dynamo  # noqa: E402 - they look names up by what stands above
from torchparity.torchapi import inductor as inductor  # noqa: E402
