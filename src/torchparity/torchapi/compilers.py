"""Torch's compilers: backends, settings, caches, failures, and the first and last step of inductor."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchparity.torchapi.door import lookup

CONFIG_MODULES = {
    "inductor": "torch._inductor.config",
    "dynamo": "torch._dynamo.config",
    "functorch": "torch._functorch.config",
}


# What a system call says where the machine, and not the program, is at its end.
MACHINE_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
    errno.EAGAIN, errno.EIO,
)  # fmt: skip

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
    torch._inductor.codegen.cpp_wrapper_gpu
    torch._inductor.codegen.cuda_combined_scheduling
    torch._inductor.codegen.halide
    torch._inductor.codegen.memory_planning
    torch._inductor.codegen.mps
    torch._inductor.codegen.pallas
    torch._inductor.codegen.segmented_tree
    torch._inductor.codegen.wrapper_fxir
    torch._inductor.compile_fx
    torch._inductor.extern_node_serializer
    torch._inductor.hooks
    torch._inductor.kernel_template_choice
    torch._inductor.select_algorithm
    torch._subclasses.schema_check_mode
    torch.distributed.tensor.experimental
    torch.export._leakage_detection_utils
    torch.export._trace
    torch.export._unlift
    torch.fx.experimental.validator
    torch.utils._cpp_embed_headers
    torch.utils.cpp_extension
""".split()
# Environment that makes a process compile every graph for itself.
NO_GRAPH_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
# Built, or probed, at the first compilation; the first by `joint_graph`, `post_grad` or `pre_grad`.
PATTERN_TABLES = "torch._inductor.fx_passes.{}.lazy_init"
VECTOR_INSTRUCTIONS = "torch._inductor.cpu_vec_isa"
# What torch reads instead of probing for them.
VECTORS_WORK = "TORCHINDUCTOR_VEC_ISA_OK"
CACHE_FOLDER = "torch._inductor.runtime.cache_dir_utils.cache_dir"
DEFAULT_CACHE_FOLDER = "torch._inductor.runtime.cache_dir_utils.default_cache_dir"
# Where a reason of Dynamo's names what it is about, and how long that may be to be read in passing.
BREAK_CONTEXT, LONGEST_CONTEXT = "Developer debug context", 60
RESULT_CACHES = {
    "inductor.fx_graph_cache": True,
    "inductor.autotune_local_cache": True,
    "functorch.enable_autograd_cache": True,
}


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


def default_cache_folder() -> str:
    """Return the folder that the compiler uses where nobody names another."""
    return str(lookup(DEFAULT_CACHE_FOLDER)())


@contextlib.contextmanager
def remembering_graphs(folder: Path) -> Iterator[None]:
    """Let the compiler keep what it makes of graphs in a folder, and use what is there."""
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    before = {name: os.environ.get(name) for name in places}
    os.environ.update(places)
    try:
        with patched_config(RESULT_CACHES):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def dynamo_repro_settings() -> dict[str, Any]:
    """Return the settings that torch's own accuracy check obeys."""
    settings = config_module("dynamo")
    names = ("repro_tolerance", "same_two_models_use_fp64")
    return {name: getattr(settings, name) for name in names}


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run what a model compiles inside itself eagerly, but for what eager itself compiles.

    Eager traces the branches of `torch.cond` and its kin with torch.compile, to bring them into the form that their
    gradients need.
    """
    stance, compiling = torch.compiler.set_stance, torch.compile

    def compile_unless_own(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = compiling(model, *args, **kwargs)
        if not str(getattr(model, "__module__", "")).startswith("torch._higher_order_ops"):
            return compiled

        def run(*inputs: Any, **keywords: Any) -> Any:
            with stance("default"):
                return compiled(*inputs, **keywords)

        return run

    torch.compile = compile_unless_own
    try:
        with stance("force_eager"):
            yield
    finally:
        torch.compile = compiling


def graphs_compiled() -> int:
    """Return how many graphs Dynamo has captured in this process."""
    return int(lookup("torch._dynamo.utils.counters")["stats"]["unique_graphs"])


def eager_random_settings() -> dict[str, Any]:
    """Return what inductor is told so that it draws eager's random numbers.

    Before 2.12 it pads what a dropout on a GPU is given, which then draws a larger mask (pytorch #174078).
    """
    padded = torch.cuda.is_available() and version_below(2, 12)
    return {"inductor.fallback_random": True} | ({"inductor.comprehensive_padding": False} if padded else {})


def version_below(*numbers: int) -> bool:
    """Tell whether torch is older than a release."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit()) < numbers


def compiler_counts() -> Counter[str]:
    """Return what the compiler has counted in this process: passes and patterns that fired, fallbacks, breaks."""
    found: Counter[str] = Counter()
    for area, counts in lookup("torch._dynamo.utils.counters").items():
        for name, count in counts.items():
            short = str(name).splitlines()[0][:80] if str(name) else ""
            found[f"{area}.{short}"] += int(count)
    return found


def left_to_python() -> Counter[str]:
    """Return why Dynamo has left code to Python in this process, in short words of its own, and how often."""
    found: Counter[str] = Counter()
    tools = sys.modules.get("torch._dynamo.utils")
    counters = tools.counters if tools is not None else {}  # Where nobody has compiled, importing it takes seconds.
    for area in ("graph_break", "unimplemented"):
        for reason, count in counters.get(area, {}).items():
            found[reason_in_short(str(reason))] += int(count)
    return found


def reason_in_short(reason: str) -> str:
    """Return the first line of a reason of Dynamo's, and what it is about where that is short."""
    lines = [line.strip() for line in reason.splitlines()] or [""]
    about = next((line.partition(":")[2].strip() for line in lines if line.startswith(BREAK_CONTEXT)), "")
    return f"{lines[0]} ({about})" if 0 < len(about) <= LONGEST_CONTEXT else lines[0]


def is_compile_failure(error: BaseException) -> bool:
    """Tell whether an exception comes from compiling, not from running what was compiled."""
    kinds = [NotDeployed, lookup("torch._dynamo.exc.TorchDynamoException")]
    kinds.append(lookup("torch._inductor.exc.InductorError"))
    return isinstance(error, tuple(kinds))


def inner_failure(error: BaseException) -> BaseException:
    """Return what a compiler failure wraps: the innermost exception that says what went wrong."""
    inner = getattr(error, "inner_exception", None)
    return inner_failure(inner) if isinstance(inner, BaseException) else error


def lacking(error: BaseException) -> str:
    """Say what this machine lacks for a compiler to do its work; nothing where the compiler itself is at fault.

    Told by the kind of the error: a compiler that is not there, a disk or a file that cannot be written, a shared
    object that does not load. A C++ compiler that fails on everything fails on an empty program too.
    """
    for inner in chain_of(error):
        if isinstance(inner, lookup("torch._inductor.exc.InvalidCxxCompiler")):
            return "a C++ compiler: install g++, or name one in CXX"
        if isinstance(
            inner, (lookup("torch._inductor.exc.TritonMissing"), lookup("torch._inductor.exc.GPUTooOldForTriton"))
        ):
            return "Triton, or a GPU that it knows"
        if isinstance(inner, OSError) and inner.errno in MACHINE_ERRORS:
            return f"what was asked of it: {inner.strerror}"
        if type(inner) is OSError and inner.errno is None:
            return f"a shared object that loads: {str(inner)[:200]}"
        if isinstance(inner, lookup("torch._inductor.exc.CppCompileError")) and not compiles_nothing():
            return "a C++ compiler that works: it fails on an empty program too"
    return ""


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception and those that it came from."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or any(one is known for known in found):
            continue
        found.append(one)
        waiting += [getattr(one, "inner_exception", None), one.__cause__, one.__context__]
    return found


def compiles_nothing() -> bool:
    """Tell whether the C++ compiler that inductor would take compiles an empty program."""
    with tempfile.TemporaryDirectory(prefix="torchparity-") as folder:
        source = Path(folder) / "empty.cpp"
        source.write_text("int main() { return 0; }\n")
        try:
            compiler = lookup("torch._inductor.cpp_builder.get_cpp_compiler")()
            command = [compiler, str(source), "-o", str(source.with_suffix(""))]
            return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        except Exception:  # noqa: BLE001 - whatever it is, there is none that works
            return False


def vector_machine() -> str:
    """Return what the probing of vector instructions depends on: the machine, torch and the C++ compiler."""
    builder = lookup("torch._inductor.cpp_builder")
    try:
        compiler = builder.get_compiler_version_info(builder.get_cpp_compiler())
    except Exception:  # noqa: BLE001 - there is none, or none that answers
        compiler = "none"
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    flags = " ".join(sorted(name for name, value in known.items() if value)) or platform.processor()
    return f"{torch.__version__} | {platform.machine()} | {flags} | {compiler}"


def vectors_work() -> bool:
    """Compile and load code for every kind of vector instructions that this machine has; tell whether all work."""
    module = lookup(VECTOR_INSTRUCTIONS)
    found = [str(kind) for kind in module.valid_vec_isa_list()]
    chosen = bool(module.pick_vec_isa())  # On ARM it is this question that compiles.
    settings = config_module("inductor").cpp
    module.valid_vec_isa_list.cache_clear()
    before, settings.vec_isa_ok = settings.vec_isa_ok, True
    try:
        claimed = [str(kind) for kind in module.valid_vec_isa_list()]
    finally:
        settings.vec_isa_ok = before
        module.valid_vec_isa_list.cache_clear()
    return chosen and found == claimed


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out, on the CPU or on a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)  # The allocator of the CPU has another wording where it was built for ARM.
    return any(words in text for words in ("can't allocate memory", "out of memory", "not enough memory"))


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


def is_boxed(function: Callable[..., Any]) -> bool:
    """Tell whether a function wants its arguments as one list, which it empties."""
    return bool(getattr(function, "_boxed_call", False))


def mark_boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tell AOTAutograd that a function wants its arguments as one list."""
    setattr(function, "_boxed_call", True)  # noqa: B010 - a plain assignment does not type-check
    return function


def compile_with_inductor(
    graph_module: Any, inputs: list[Any], inner_compile: Any, settings: Mapping[str, Any] | None = None
) -> Any:
    """Run the whole of inductor with another function in place of its last step."""
    compile_fx = lookup("torch._inductor.compile_fx.compile_fx")
    # A graph that was compiled before would come from the cache, whatever the last step is.
    with patched_config({"functorch.enable_autograd_cache": False}):
        return compile_fx(
            graph_module, inputs, inner_compile=inner_compile, config_patches=dict(settings or {}) or None
        )


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


# Lines that stand before what an exporter has to say.
PREAMBLES = ("Check '", "FrontEnd API failed", "Summary:", "Exception from ")


class NotDeployed(Exception):
    """A model that could not be exported, or that an engine did not take; `inner_exception` says why."""

    def __init__(self, error: BaseException) -> None:
        # The exporter to ONNX explains its own steps first; what went wrong in them is the cause.
        while error.__cause__ is not None:
            error = error.__cause__
        self.inner_exception = error
        lines = [line.strip() for line in str(error).splitlines()]
        super().__init__(" ".join([line for line in lines if line and not line.startswith(PREAMBLES)][:2]))
