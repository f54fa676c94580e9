"""What a check costs on a GPU, and what it says there; absolute times, of this machine.

    python -m benchmarks.cuda check leaf isolate queries faults hostile injected real

check    a transformer, bfloat16, forward and backward: ours and stock's `same_two_models`, time and peak memory
leaf     one leaf of 2^28 floats: beginning, a sample, a judgement; against what memory itself allows
isolate  `check` of a tiny model from the command line, isolated and not
queries  the same check asked of a pool and in one process, by turns, again and again
hostile  200 candidates in random order (asserts, writes outside, no memory, leaks, hangs, exits, good ones)
faults   kernels that assert, reach out of bounds or never end: what a check says of each
injected PyTorch's own planted bugs, in a transformer of twelve blocks: what `diagnose` says of each
real     real bugs of `benchmarks/bugs.py` with the GPU as the default device: the five lines of `diagnose`
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import random
import statistics as statistics_of
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import torchparity
from torchparity.compare import judgement, statistics
from torchparity.records import Verdict
from torchparity.request import request_for
from torchparity.run.target import Target
from torchparity.verbs.apart import checked_apart
from torchparity.verbs.asking import PRELOAD
from torchparity.workers import processes
from torchparity.workers.connection import MARK
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

GIB = 2.0**30
TINY = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda(), (torch.randn(4, 8, device="cuda"),)
"""
FAULTS = """
import os
import torch
import triton
import triton.language as tl
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from functorch.compile import make_boxed_func

@triton.jit
def asserts(pointer):
    tl.device_assert(tl.load(pointer) > 1e30, "too small")

@triton.jit
def reaches(pointer):
    tl.store(pointer + (1 << 40), 1.0)

@triton.jit
def hangs(pointer):
    while tl.load(pointer, volatile=True) < 1e30:
        pass

def wrong(kernel):
    def compile_graph(graph_module, inputs):
        if not any("aten.cos." in str(node.target) for node in graph_module.graph.nodes):
            return make_boxed_func(graph_module.forward)

        def run(args):
            kernel[(1,)](next(entry for entry in args if isinstance(entry, torch.Tensor)), debug=True)
            return graph_module(*args)

        return make_boxed_func(lambda *args: run(args))

    return aot_autograd(fw_compiler=compile_graph)

def exhausts(graph_module, inputs):
    def run(*args):
        torch.empty(1 << 42, device="cuda")
    return make_boxed_func(run)

kept = []

def leaks(graph_module, inputs):
    def run(*args):
        kept.append(torch.empty(1 << 30, device="cuda"))
        return graph_module(*args)
    return make_boxed_func(run)

def leaves(graph_module, inputs):
    return make_boxed_func(lambda *args: os._exit(3))

def crashes(graph_module, inputs):
    return make_boxed_func(lambda *args: os.kill(os.getpid(), 11))

def raises(graph_module, inputs):
    raise ValueError("on purpose")

asserting, reaching, hanging = wrong(asserts), wrong(reaches), wrong(hangs)
exhausting, leaking = aot_autograd(fw_compiler=exhausts), aot_autograd(fw_compiler=leaks)
leaving, crashing = aot_autograd(fw_compiler=leaves), aot_autograd(fw_compiler=crashes)
raising = aot_autograd(fw_compiler=raises)
for name in ("asserting", "reaching", "hanging", "exhausting", "leaking", "leaving", "crashing", "raising"):
    register_backend(globals()[name], name=name)

def wave(x):
    return (x.sin() + x.cos().relu()) * 2 + x.tanh()

def make():
    torch.manual_seed(0)
    return wave, (torch.randn(4, 5, device="cuda"),)
"""

BLOCKS = """
import torch

class Block(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.relu(self.up(self.second(x))))

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(12))).cuda()
    return model, (torch.randn(2, 16, 64, device="cuda"),)
"""
# Bugs that PyTorch plants in its own lowering of relu, to test its tools with.
INJECTED = ("compile_error", "runtime_error", "accuracy")
# Bugs of torch 2.11 that are there on a GPU as well.
REAL = ("any-of-bytes", "typed-cumsum", "times-zero", "strided-inside", "full-of-flag")


class Block(torch.nn.Module):
    """A block of a decoder, with attention by torch's own function."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.queries = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 8 * width // 3 * 2, bias=False)
        self.down = torch.nn.Linear(8 * width // 3, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.queries(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, value = self.up(self.after(x)).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * value)


class Decoder(torch.nn.Module):
    """Tokens in, scores out."""

    def __init__(self, width: int, blocks: int, words: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.Sequential(*(Block(width, width // 128) for _ in range(blocks)))
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def made(size: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model by its size, and tokens for it."""
    width, blocks = {"1G": (2048, 24), "7G": (4096, 32)}[size]
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Decoder(width, blocks, 32000)
        torch.set_default_dtype(torch.float32)
        return model, (torch.randint(0, 32000, (1, 512)),)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what some work gives, how long it took and how much memory it held at once.

    What others have left is thrown away first: in some turns one would pay for the other's garbage.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return found, time.perf_counter() - began, torch.cuda.max_memory_allocated() / GIB


def stock(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Ask the stock tool, as its own accuracy minifier does."""
    from torch._dynamo.debug_utils import same_two_models

    torch.compiler.reset()
    graph = torch.fx.symbolic_trace(model)  # It wants a graph.
    compiled = torch.compile(copy.deepcopy(model))
    return bool(same_two_models(graph, compiled, list(inputs), require_fp64=True))


def bench_check(console: Console, options: argparse.Namespace) -> None:
    """A whole check of a large model and stock's, by turns: from the second on with warm caches."""
    for size in options.sizes:
        model, inputs = made(size)
        count = sum(parameter.numel() for parameter in model.parameters()) / 1e9
        asked: dict[str, Callable[[], Any]] = {
            "torchparity": functools.partial(torchparity.check, model, inputs, train=True)
        }
        if size == "1G":  # The other one does not fit.
            asked["same_two_models"] = functools.partial(stock, model, inputs)
        table = Table("model", "who", "says", "seconds", "peak GiB")
        taken: dict[str, list[float]] = {who: [] for who in asked}
        for turn in range(options.turns):
            for who, work in asked.items():
                says, seconds, peak = timed(work)
                taken[who].append(seconds)
                told = says.status.value if isinstance(says, Verdict) else str(says)
                table.add_row(f"{count:.2f} G", f"{who}, turn {turn + 1}", told, f"{seconds:.2f}", f"{peak:.1f}")
                for run in says.runs if isinstance(says, Verdict) and turn == options.turns - 1 else ():
                    table.add_row("", f"  {run.name}", run.ending, f"{run.seconds:.2f}", "")
        console.print(table)
        medians = {who: statistics_of.median(seconds[1:] or seconds) for who, seconds in taken.items()}
        console.print("medians of the warm ones:", {who: round(seconds, 2) for who, seconds in medians.items()})
        if "same_two_models" in medians:
            console.print(f"ratio {medians['torchparity'] / medians['same_two_models']:.2f}")
        del model, asked


def bench_leaf(console: Console, options: argparse.Namespace) -> None:
    """One large leaf, step by step: what the device does, and all of it with Python and with waiting."""
    from triton.testing import do_bench

    table = Table(
        "dtype", "shape", "step", "floor, ms", "device, ms", "ratio", "waited for, ms", "ratio", "allocated, bytes"
    )
    square, flat = (1 << 14, 1 << 14), (1 << 28,)
    for dtype, shape in ((torch.float32, square), (torch.float32, flat), (torch.bfloat16, square)):
        eager = torch.randn(shape, device="cuda").to(dtype)
        truth = eager.double() * (1 + 1e-9)
        other = eager * (1 + 1e-3)
        copied = torch.empty_like(truth)
        copied.copy_(truth)
        speed = 2 * truth.nbytes / best(lambda copied=copied, truth=truth: copied.copy_(truth))
        del copied
        held = eager.nbytes
        baseline = statistics.FloatBaseline(eager, truth)
        steps: dict[str, tuple[int, Callable[[], Any]]] = {
            "begin": (2 * held + truth.nbytes, functools.partial(statistics.FloatBaseline, eager, truth)),
            "sample": (5 * held, functools.partial(baseline.add, other)),
            "judge": (4 * held, functools.partial(judgement.judge_float, baseline, other, judgement.Tolerance())),
        }
        for name, (moved, work) in steps.items():
            floor = moved / speed * 1e3
            waited, device = best(work) * 1e3, do_bench(work, warmup=10, rep=50)
            ratios = f"{device / floor:.2f}", f"{waited / floor:.2f}"
            times = f"{floor:.2f}", f"{device:.2f}", ratios[0], f"{waited:.2f}", ratios[1]
            table.add_row(str(dtype), str(shape), name, *times, f"{allocated(work):,}")
        console.print(f"{dtype}, {shape}: all leaves of a thread share {baseline.room().size / 2**20:.0f} MiB for sums")
        del truth, baseline, steps
    console.print(table)


def best(work: Callable[[], Any], turns: int = 5) -> float:
    """Return the least time of several."""
    work()
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found)


def allocated(work: Callable[[], Any]) -> int:
    """Return how many bytes of the device's memory some work takes beside what was held before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def command(folder: str, *words: str) -> tuple[str, int, float]:
    """Run the command line; return what it printed, its exit code and how long it took."""
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "torchparity", *words, "-q"], cwd=folder, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr, ended.returncode, time.perf_counter() - began


def bench_isolate(console: Console, options: argparse.Namespace) -> None:
    """The same check in a process of its own, and in one more."""
    table = Table("how", "exit code", "seconds")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.py").write_text(TINY, encoding="utf-8")
        for how in ("--no-isolate", "--isolate") * 2:
            _, code, seconds = command(folder, "check", "model.py:make", how)
            table.add_row(how, str(code), f"{seconds:.1f}")
    console.print(table)


def bench_queries(console: Console, options: argparse.Namespace) -> None:
    """What one question costs, from the second on: in a process of a pool and in this one, by turns."""
    asked: dict[str, list[float]] = {"a pool": [], "one process": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.py")
        path.write_text(BLOCKS, encoding="utf-8")
        target, request = Target(f"{path}:make"), request_for("check", {})
        subject = None
        with Pool(workers=1, preload=PRELOAD) as pool:
            pool.wait_until_ready()
            for _ in range(options.queries):
                began = time.perf_counter()
                verdict = checked_apart(target, request, pool, Limits(seconds=300.0))
                asked["a pool"].append(time.perf_counter() - began)
                console.print(verdict.status.value, *(f"{run.name} {run.seconds:.2f}" for run in verdict.runs))
                subject = subject or target.load()
                began = time.perf_counter()
                torchparity.check(subject)
                asked["one process"].append(time.perf_counter() - began)
    table = Table("how", "seconds of each query", "median of the second and after")
    medians = {how: statistics_of.median(seconds[1:]) for how, seconds in asked.items()}
    for how, seconds in asked.items():
        table.add_row(how, " ".join(f"{second:.2f}" for second in seconds), f"{medians[how]:.2f}")
    console.print(table, f"ratio {medians['a pool'] / medians['one process']:.2f}")


# What a check says of each hostile candidate.
HOSTILE = {
    "asserting": ("differs", "crashes"), "reaching": ("differs", "crashes"), "leaving": ("differs", "crashes"),
    "crashing": ("differs", "crashes"), "raising": ("differs", "raises"), "exhausting": ("unknown", ""),
    "leaking": ("same", ""), "aot_eager": ("same", ""), "inductor": ("same", ""),
}  # fmt: skip


def bench_hostile(console: Console, options: argparse.Namespace) -> None:
    """Hostile candidates among good ones, in random order: outcomes, processes and memory that are left."""
    chooser = random.Random(1)
    kinds = chooser.choices(list(HOSTILE), k=options.hostile - 2) + ["hanging"] * 2
    chooser.shuffle(kinds)
    free = torch.cuda.mem_get_info()[0]
    wrong, began = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as threads:
        path = Path(folder, "model.py")
        path.write_text(FAULTS, encoding="utf-8")
        with Pool(workers=options.workers, preload=PRELOAD) as pool:

            def ask(kind: str) -> tuple[str, Verdict]:
                target = Target(f"{path}:make")
                request = request_for("check", {"backend": kind})
                return kind, checked_apart(target, request, pool, Limits(seconds=200.0))

            for kind, verdict in threads.map(ask, kinds):
                if (verdict.status.value, verdict.kind or "") != HOSTILE.get(kind, ("differs", "crashes")):
                    wrong.append((kind, verdict.status.value, verdict.kind, *verdict.reasons))
            mark = pool.mark
    seconds = time.perf_counter() - began
    left, lost = processes.marked(MARK, mark), (free - torch.cuda.mem_get_info()[0]) / GIB
    counts = Counter(kinds)
    console.print(f"{len(kinds)} candidates in {seconds:.0f} s with {options.workers} workers: {dict(counts)}")
    console.print(f"wrong outcomes: {len(wrong)}; processes left: {len(left)}; memory not given back: {lost:.2f} GiB")
    console.print(*wrong, sep="\n")


def bench_faults(console: Console, options: argparse.Namespace) -> None:
    """Kernels that take the device along."""
    table = Table("kernel", "command", "exit code", "seconds", "says")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.py").write_text(FAULTS, encoding="utf-8")
        for name in options.faults:
            for verb in options.verbs:
                told, code, seconds = command(folder, verb, "model.py:make", "--backend", name)
                table.add_row(name, verb, str(code), f"{seconds:.1f}", "\n".join(told.splitlines()[:6]))
    console.print(table)


def bench_injected(console: Console, options: argparse.Namespace) -> None:
    """PyTorch's own planted bugs, in a transformer of twelve blocks: the five lines of each, as each ends."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        Path(folder, "model.py").write_text(BLOCKS, encoding="utf-8")
        setting = "inductor.triton.inject_relu_bug_TESTING_ONLY"
        asked = {
            threads.submit(
                command, folder, "diagnose", "model.py:make", "--config", f"{setting}={bug}", "--out", f"found/{bug}"
            ): bug
            for bug in INJECTED
        }
        for future in as_completed(asked):
            told, code, seconds = future.result()
            console.print(f"{asked[future]}: exit code {code}, {seconds:.1f} s", *told.splitlines()[:6], sep="\n  ")


def bench_real(console: Console, options: argparse.Namespace) -> None:
    """Real bugs on the GPU, beside each other: which of the five lines are right, and the lines, as each ends."""
    from benchmarks.bugs import BY_NAME
    from benchmarks.diagnose import diagnose

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        asked = {}
        for name in REAL:
            own = Path(folder, name)
            own.mkdir()
            asked[threads.submit(diagnose, BY_NAME[name], own, "cuda")] = name
        for future in as_completed(asked):
            found = future.result()
            wrong = [line for line, right in found.right.items() if not right]
            told = f"wrong: {', '.join(wrong)}" if wrong else "five right lines"
            console.print(f"{asked[future]}: {told}, {found.seconds:.1f} s", *found.lines, sep="\n  ")


PARTS = {
    "check": bench_check,
    "leaf": bench_leaf,
    "isolate": bench_isolate,
    "queries": bench_queries,
    "hostile": bench_hostile,
    "faults": bench_faults,
    "injected": bench_injected,
    "real": bench_real,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=[*PARTS, []])
    parser.add_argument("--sizes", nargs="*", default=["1G"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--faults", nargs="*", default=["asserting", "reaching", "exhausting", "hanging"])
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--hostile", type=int, default=200)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--verbs", nargs="*", default=["check", "diagnose"])
    options = parser.parse_args()
    console = Console(width=160)
    for part in options.parts:
        PARTS[part](console, options)


if __name__ == "__main__":
    main()
