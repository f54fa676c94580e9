"""What a sweep costs beside its cells: workers, a Ray cluster of three nodes on this machine, the driver by itself.

    python -m benchmarks.sweeps --cells 60

Cells are checks of a small model with the backend aot_eager, the same everywhere; times are told as ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import torchparity
from torchparity.fleet.cells import Cell
from torchparity.fleet.executors import Answer
from torchparity.fleet.store import Store, query
from torchparity.fleet.sweep import Sweep
from torchparity.records import Status, Verdict

MODEL = """
import torch


def make(width):
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()), (torch.ones(2, width),)
"""
NODES = 3


class Nothing:
    """Runs cells of nothing: each is done when it is asked for."""

    width = 64

    def facts(self) -> dict[str, Any]:
        """Say nothing of an environment."""
        return {}

    def submit(self, cell: Cell) -> Future[Answer]:
        """Answer at once."""
        done: Future[Answer] = Future()
        done.set_result(
            Answer(verdict=Verdict(status=Status.SAME, reasons=(), runs=(), recipe={}, environment={}, seconds=0.0))
        )
        return done

    def close(self) -> None:
        """There is nothing to stop."""


def driver(cells: int) -> float:
    """Return the seconds that a driver takes for cells of nothing."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), create=True)
        targets = [Cell(target="m.py:make", parameters={"width": width}) for width in range(cells)]
        began = time.perf_counter()
        store.begin("suite", [""], targets, {"base": folder}, time.time())
        Sweep(store, Nothing(), 0).run()
        seconds = time.perf_counter() - began
        store.close()
        found = query(Path(folder), "select count(*) from cells where status = 'same'")[1]
        assert found == [(cells,)], found
        return seconds


def swept(cells: int, **how: Any) -> float:
    """Return the seconds of a sweep over as many cells, all of which must be the same."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "m.py").write_text(MODEL, encoding="utf-8")
        widths = list(range(1, cells + 1))
        suite = f'[[target]]\nof = "m.py:make"\nparameters = {{ width = {widths} }}\nbackend = "aot_eager"\n'
        (place / "suite.toml").write_text(suite, encoding="utf-8")
        began = time.perf_counter()
        found = torchparity.sweep(place / "suite.toml", out=place / "out", **how)
        seconds = time.perf_counter() - began
        assert dict(found.statuses) == {"same": cells}, found.statuses
        return seconds


def on_a_cluster(cells: int, cores: int) -> float:
    """Return the seconds of the same sweep on a real Ray cluster of three nodes that have so many cores together."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    shares = [cores // NODES + (place < cores % NODES) for place in range(NODES)]
    for share in shares:
        made.add_node(num_cpus=share)
    try:
        swept(NODES, ray=made.address)  # Workers of a cluster start with their first cells.
        return swept(cells, ray=made.address)
    finally:
        made.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=60)
    parser.add_argument("--nothing", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--ray", type=int, default=2, help="cores of the cluster; 0 for none")
    options = parser.parse_args()
    console = Console(width=100)
    table = Table("what", "seconds", "cells a minute", "against one worker")
    rows: list[tuple[str, Callable[[], float]]] = [
        (f"{count} workers", lambda count=count: swept(options.cells, workers=count)) for count in options.workers
    ]
    if options.ray:
        rows.append((f"Ray, {NODES} nodes, {options.ray} cores", lambda: on_a_cluster(options.cells, options.ray)))
    times: dict[str, float] = {}
    for name, run in rows:
        times[name] = run()
        first = next(iter(times.values()))
        table.add_row(
            name, f"{times[name]:.1f}", f"{60 * options.cells / times[name]:.0f}", f"{times[name] / first:.2f}"
        )
        console.print(f"{name}: {times[name]:.1f} s", highlight=False)
    console.print(table)
    here, there = times.get(f"{options.ray} workers"), times.get(f"Ray, {NODES} nodes, {options.ray} cores")
    if here and there:
        console.print(f"Ray over as many workers here: {there / here:.2f} times", highlight=False)
    seconds = driver(options.nothing)
    each = 1000 * seconds / options.nothing
    console.print(f"the driver, {options.nothing} cells of nothing: {seconds:.1f} s, {each:.2f} ms each")


if __name__ == "__main__":
    main()
