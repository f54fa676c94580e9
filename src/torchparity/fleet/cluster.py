"""Cells on a Ray cluster: placement, resources and the retries of lost nodes are Ray's; the verdicts are ours."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torchparity.errors import ResourceError, UsageError
from torchparity.fleet.cells import Cell
from torchparity.fleet.executors import Answer, answer_of, payload_of
from torchparity.fleet.jobs import CELL_JOB, FACTS_JOB, PRELOAD
from torchparity.workers.outcome import Ending, ErrorFacts, Limits, Outcome
from torchparity.workers.pool import Pool

# What every node must have as the driver has it, before its first cell.
ALIKE = ("torch", "torchparity")
# How many cells wait at the cluster beyond those that run: no node is to be idle, and the longest go first.
AHEAD = 2
REACH_SECONDS = 10.0
# How many nodes may die under one cell before nobody wants it.
RETRIES = 20
FACTS_LIMITS = Limits(seconds=300.0)

_pools: dict[str, Pool] = {}
_lock = threading.Lock()


def pool_here() -> Pool:
    """Return the workers of this process of the cluster: one query at a time, and warm from the second on."""
    with _lock:
        if "own" not in _pools:
            _pools["own"] = Pool(workers=1, preload=PRELOAD)
        return _pools["own"]


def run_cell(payload: dict[str, Any], seconds: float, memory: int | None, wanted: dict[str, str]) -> dict[str, Any]:
    """Run a cell on a node, in a process of its own; refuse where the node is not as the driver is."""
    pool = pool_here()
    strange = differing(pool, wanted)
    if strange:
        return {"strange": strange}
    outcome = pool.run(CELL_JOB, payload, limits=Limits(seconds=seconds, memory=memory))
    return {"outcome": outcome}


def differing(pool: Pool, wanted: dict[str, str]) -> str:
    """Say what a node has otherwise than the driver; asked once in each process."""
    if "facts" not in _facts:
        outcome = pool.run(FACTS_JOB, {}, limits=FACTS_LIMITS)
        if outcome.ending is not Ending.RETURNED:
            return f"{os.uname().nodename}: no worker starts ({outcome.ending.value})"
        _facts["facts"] = outcome.value["facts"]
    here = _facts["facts"]
    odd = [f"{name} {here.get(name)}, not {value}" for name, value in wanted.items() if here.get(name) != value]
    return f"{os.uname().nodename} has {', '.join(odd)}" if odd else ""


_facts: dict[str, dict[str, Any]] = {}


class Cluster:
    """Runs cells on a Ray cluster."""

    def __init__(self, base: Path, *, address: str) -> None:
        self.base, self.ray = base, imported()
        if not self.ray.is_initialized():
            try:
                reach(address)
                self.ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            except (OSError, ValueError, RuntimeError) as error:
                raise ResourceError(
                    f"there is no Ray cluster at {address!r}: {error}", hint="start one with `ray start --head`"
                ) from error
        self.width = AHEAD + max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.wanted: dict[str, str] = {}
        # A cell whose node dies is run again by Ray; what a cell itself does to its process is its answer.
        self.remote = self.ray.remote(max_retries=RETRIES, num_cpus=1)(run_cell)

    def facts(self) -> dict[str, Any]:
        """Say what the driver's environment is, which nodes are held to."""
        import torch

        from torchparity.run.environment import environment

        found = environment(torch.device("cpu"))
        self.wanted = {name: str(found[name]) for name in ALIKE}
        return {**found, "cluster": {name: value for name, value in self.ray.cluster_resources().items() if value}}

    def submit(self, cell: Cell) -> Future[Answer]:
        """Have the cluster run a cell."""
        gpus = 1 if str(cell.options.get("device", "")).startswith("cuda") else 0
        resources: dict[str, Any] = {"num_gpus": gpus} | ({"memory": cell.memory} if cell.memory else {})
        remote = self.remote.options(**resources)
        reference = remote.remote(payload_of(cell, self.base), cell.seconds, cell.memory, self.wanted)
        done: Future[Answer] = Future()
        reference.future().add_done_callback(answered(cell, done, self.ray.exceptions.RayError))
        return done

    def close(self) -> None:
        """Leave the cluster; what still runs there ends by itself."""
        self.ray.shutdown()


def reach(address: str) -> None:
    """Raise where nobody listens: Ray would wait for two minutes, and then leave the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()


def answered(cell: Cell, done: Future[Answer], lost: type[Exception]) -> Callable[[Future[dict[str, Any]]], None]:
    """Return what turns the answer of a node into that of a cell; `lost` is what Ray says when it gives up on one."""

    def heard(future: Future[dict[str, Any]]) -> None:
        try:
            found = future.result()
            if "strange" in found:
                raise ResourceError(
                    f"a node is not like the driver: {found['strange']}", hint="give every node the same environment"
                )
            outcome: Outcome = found["outcome"]
            done.set_result(answer_of(cell, outcome))
        except lost as error:
            facts = ErrorFacts(type=type(error).__name__, message=f"the cluster gave it up: {error}"[:500])
            done.set_result(answer_of(cell, Outcome(ending=Ending.RAISED, error=facts)))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer is to see it
            done.set_exception(error)

    return heard


def imported() -> Any:
    """Return Ray, or say how to get it."""
    try:
        import ray
    except ImportError as error:
        raise UsageError("Ray is not installed", hint="pip install torchparity[ray]") from error
    return ray
