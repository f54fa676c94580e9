"""`make bench-cases`: what cases cost, each against what one would do without them, as ratios.

query    one warm query of a pool over a cold `python repro.py`, the same small bundle
guard    a call of a guarded function after its first over a call of the bare compiled one
disk     writing and reading a bundle over copying a file of the same size
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import torchparity
from torchparity.repro.case import Case
from torchparity.repro.values import Dense, Storage
from torchparity.verbs.run import run_bundle
from torchparity.workers.pool import Pool

GIB = 2**30


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def small(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y).relu().sum(0) * 2.0


def bench_query(table: Table, folder: Path) -> None:
    """A warm query, the first of a new pool excepted, against the script in a cold process."""
    inputs = (torch.randn(16, 16), torch.randn(16, 16))
    for backend in ("aot_eager", "inductor"):
        torchparity.capture(small, inputs, backend=backend, out=folder / backend)
        bundle = folder / backend / "001_dynamo"
        cold = statistics.median(time_cold(bundle) for _ in range(3))
        with Pool(workers=1) as pool:
            run_bundle(bundle, pool=pool)
            warm = statistics.median(time_warm(bundle, pool) for _ in range(5))
        row(table, f"query, {backend}: cold script over warm query", "s", cold, warm)


def time_cold(bundle: Path) -> float:
    return seconds(lambda: subprocess.run([sys.executable, bundle / "repro.py"], check=True, capture_output=True))


def time_warm(bundle: Path, pool: Pool) -> float:
    return seconds(lambda: run_bundle(bundle, pool=pool))


def bench_guard(table: Table) -> None:
    """Calls of a guarded and of a bare compiled function, taken in turns."""
    torch.set_num_threads(1)
    x = torch.randn(4)
    for backend in ("aot_eager", "inductor"):
        torch.compiler.reset()
        bare = torch.compile(lambda value: torch.relu(value + 1) * 2, backend=backend)
        guarded = torch.compile(lambda value: torch.relu(value + 1) * 2, backend=torchparity.guard(backend))
        functions = {"bare": bare, "guarded": guarded}
        best: dict[str, list[float]] = {name: [] for name in functions}
        for turn in range(15):
            for name, function in functions.items():
                repeats = 3000 if turn else 200
                started = time.perf_counter()
                for _ in range(repeats):
                    function(x)
                best[name].append((time.perf_counter() - started) / repeats * 1e6)
        row(table, f"guard, {backend}: one call", "us", min(best["guarded"][1:]), min(best["bare"][1:]))
    torch.set_num_threads(os.cpu_count() or 1)


def bench_disk(table: Table, folder: Path, gigabytes: float) -> None:
    """A bundle of one large tensor against a copy of its file, both flushed to the disk, in turns."""
    size = int(gigabytes * GIB)
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    value = Dense(storage=0, dtype="float32", shape=(size // 4,), stride=(1,))
    case = Case(
        name="large",
        level="dynamo",
        direction="both",
        graph="class Graph(torch.nn.Module):\n    def forward(self, x):\n        return (x + 1,)\n",
        inputs=(("x", value),),
        storages=(Storage(data=data, device="cpu", dtype=torch.float32),),
    )
    target, copied = folder / "large", folder / "copied"
    writes, reads, copies, copy_reads = [], [], [], []
    for _ in range(5):
        shutil.rmtree(target, ignore_errors=True)
        copied.unlink(missing_ok=True)
        os.sync()
        fresh = replace(case)  # A case remembers its digest; this one has to take it.
        writes.append(seconds(lambda case=fresh: torchparity.write_bundle(case, target)))
        os.sync()
        copies.append(seconds(lambda: copy_and_flush(target / "tensors.safetensors", copied)))
        reads.append(seconds(lambda: torchparity.read_bundle(target)))
        copy_reads.append(seconds(lambda: copied.read_bytes()))
    row(table, f"disk: write {gigabytes:g} GiB, over a copy", "s", statistics.median(writes), statistics.median(copies))
    row(table, f"disk: read {gigabytes:g} GiB, over a copy", "s", statistics.median(reads), statistics.median(copies))
    row(table, "disk: read, over reading a file", "s", statistics.median(reads), statistics.median(copy_reads))


def copy_and_flush(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def row(table: Table, name: str, unit: str, first: float, second: float) -> None:
    table.add_row(name, f"{first:.3g} {unit}", f"{second:.3g} {unit}", f"{first / second:.2f}")
    print(f"  {name}: {first:.4g} {unit} and {second:.4g} {unit}, ratio {first / second:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["query", "guard", "disk"])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = Table(title="what cases cost")
    for title in ("what", "first", "second", "ratio"):
        table.add_column(title, justify="left" if title == "what" else "right")
    with tempfile.TemporaryDirectory() as name:
        if "query" in options.parts:
            bench_query(table, Path(name))
        if "guard" in options.parts:
            bench_guard(table)
        if "disk" in options.parts:
            bench_disk(table, Path(name), options.gigabytes)
    Console().print(table)


if __name__ == "__main__":
    main()
