"""What the server does once so that no query has to: import the compilers, and what they set up on first use.

All of it must leave one thread and no CUDA context, or a fork would inherit locks that nobody opens.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import platform
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchparity import torchapi
from torchparity.errors import TorchVersionError
from torchparity.workers.connection import GRAPHS_OFF

# Processes that wait for a query with a GPU that is started.
SPARES = 2
CACHE = "TORCHINDUCTOR_CACHE_DIR"
# The folder of what a server's queries have found out of precompiled headers.
HEADERS = "headers"
# The file that remembers that all vector instructions of a machine work.
VECTORS_WORK = "vectors-work"
# Not torch's, and imported by it in the middle of a compilation.
OTHERS = ("sympy.tensor.tensor", "sympy.physics.units")


def warm_up(preload: list[str], *, compilers: bool, still_wanted: Callable[[], bool]) -> None:
    """Import what queries will need, and stop half-way where nobody wants it any more.

    Modules that are preloaded have to be there, and may have more to make ready: a function `prepare`. What does not
    work of the compilers stands in the log, and is the query's to meet, if it needs it at all.
    """
    gc.disable()  # Nothing of what is imported is garbage, and looking for it takes a sixth of the time.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # A fork has not the others of a pool that was started, and would wait for them for ever.
    try:
        for name in preload:
            if still_wanted():
                importlib.import_module(name)
        if compilers and still_wanted():
            _forget_results()  # What was compiled before is no answer: a server that cannot do this must not serve.
        for step in _steps() if compilers else ():
            if not still_wanted():
                return
            try:
                step()
            except Exception:  # noqa: BLE001 - of a compiler's modules, of another torch: anything
                traceback.print_exc()
        for name in preload:
            if still_wanted():
                _call(name, "prepare")
    finally:
        torch.set_num_threads(threads)
        gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise touch, and so copy, every page


def _steps() -> Iterator[Callable[[], Any]]:
    """Yield what makes the compilers ready."""
    for name in (*torchapi.COMPILER_MODULES, *OTHERS):
        yield functools.partial(_attempt, name)
    yield from (torchapi.list_backends, platform.platform, _probe_vector_instructions, _forget_function_names)
    if not torchapi.has_gpu():  # Tracing the patterns would start CUDA, and no fork could use it then.
        yield functools.partial(_trace_patterns, torch.device("cpu"))


def prepare(preload: list[str], *, compilers: bool) -> None:
    """Do in a process that waits for a query what its server may not: start the device, and all that needs one.

    A module that is preloaded may have more to prepare: a function `prepare_device`.
    """
    with contextlib.suppress(Exception):  # Whatever does not work here is the query's to meet.
        torchapi.start_device()
        if compilers and torchapi.has_gpu():
            _trace_patterns(torch.device("cuda", torch.cuda.current_device()))
        for name in preload:
            _call(name, "prepare_device")


def _call(module: str, function: str) -> None:
    """Call a function of a module, where it has such a one."""
    getattr(sys.modules.get(module), function, lambda: None)()


def _attempt(path: str) -> Any:
    with contextlib.suppress(TorchVersionError, ImportError):
        return torchapi.lookup(path)
    return None


def _forget_results() -> None:
    """Turn off what remembers results of compiling, here and in what queries start."""
    for key in torchapi.RESULT_CACHES:
        area, name = key.split(".")
        settings = torchapi.config_module(area)
        if hasattr(settings, name):
            setattr(settings, name, False)
    os.environ.update(GRAPHS_OFF)


def _forget_function_names() -> None:
    with contextlib.suppress(TorchVersionError):
        torchapi.dynamo.forget_function_names()


def _trace_patterns(device: torch.device) -> None:
    """Build inductor's tables of patterns, 0.5 s, without the progress bar that would start a thread.

    Those of another device would stand beside the ones that a compilation adds, and be tried as well.
    """
    bar = _attempt("tqdm.tqdm")
    interval = getattr(bar, "monitor_interval", None)
    if bar is not None:
        bar.monitor_interval = 0
    for name in ("joint_graph", "post_grad", "pre_grad"):
        initialise = _attempt(torchapi.PATTERN_TABLES.format(name))
        if initialise is not None:
            # A cache keyed by its arguments: this is how the compiler itself calls it.
            initialise(device) if name == "joint_graph" else initialise()
    if bar is not None:
        bar.monitor_interval = interval


def _probe_vector_instructions() -> None:
    """Find the vector instructions that the C++ compiler and this machine share, and remember where all of them work.

    Probing takes 10 s the first time and 1 s later; a torch whose probes import torch takes a minute, every time. The
    probes are kept beside what torch itself keeps, and apart from it, so that they can be handed on alone.
    """
    folder = probes()
    if folder is None or torchapi.VECTORS_WORK in os.environ:
        return
    try:
        seen, answer = torchapi.vector_machine(), folder / VECTORS_WORK
    except TorchVersionError:
        return
    with contextlib.suppress(OSError, ValueError):
        if answer.read_text(encoding="utf-8") == seen:
            _trust_vectors()
            return
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    works = False
    try:
        with contextlib.suppress(TorchVersionError, AttributeError):
            works = torchapi.vectors_work()
    finally:
        del os.environ[CACHE]
        if before is not None:
            os.environ[CACHE] = before
    if works:
        _trust_vectors()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{VECTORS_WORK}.{os.getpid()}"
            partial.write_text(seen, encoding="utf-8")
            partial.replace(answer)


def _trust_vectors() -> None:
    """Have this process, and all that it starts, not probe again."""
    os.environ[torchapi.VECTORS_WORK] = "1"
    torchapi.config_module("inductor").cpp.vec_isa_ok = True


def probes() -> Path | None:
    """Return the folder of the probes, in torch's own cache."""
    cache = _attempt(torchapi.CACHE_FOLDER)
    return Path(cache()) / "torchparity-probes" if cache is not None else None


def share_headers(root: Path) -> None:
    """Have queries tell each other, through a server's folder, which precompiled header their kernels take."""
    with contextlib.suppress(TorchVersionError):
        torchapi.remember_headers(root / HEADERS)


def copy_probes(target: Path) -> None:
    """Put a copy of the probes, if there are any, where processes that compile for the first time can start from it."""
    folder = probes()
    with contextlib.suppress(OSError):  # Without them, such a process probes the machine again: slower, not wrong.
        if folder is not None:
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns("locks"), dirs_exist_ok=True)
