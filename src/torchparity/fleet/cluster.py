"""A sweep's cells and minify's questions on a Ray cluster: placement and lost nodes are Ray's, answers are ours."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torchparity.errors import ResourceError, UsageError
from torchparity.fleet.cells import Cell
from torchparity.fleet.executors import Answer, passing_on, payload_of
from torchparity.fleet.jobs import CELL_JOB, FACTS_JOB, PRELOAD
from torchparity.judge.isolated import BUNDLE_JOB
from torchparity.repro.looking import read_facts
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


def run_job(
    job: str, payload: dict[str, Any], files: dict[str, bytes], limits: tuple[float, int | None], wanted: dict[str, str]
) -> dict[str, Any]:
    """Run a job on a node, in a process of its own; refuse where the node is not as the driver is.

    `files` are put into a folder there, which the job is told.
    """
    pool = pool_here()
    strange = differing(pool, wanted)
    if strange:
        return {"strange": strange}
    seconds, memory = limits
    with tempfile.TemporaryDirectory(prefix="torchparity-") as folder:
        for name, data in files.items():
            place = Path(folder, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if files:
            payload = {**payload, "folder": folder}
        return {"outcome": pool.run(job, payload, limits=Limits(seconds=seconds, memory=memory))}


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


class Connection:
    """What a Ray cluster is asked through."""

    def __init__(self, address: str) -> None:
        self.ray = imported()
        if not self.ray.is_initialized():
            try:
                reach(address)
                self.ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            except (OSError, ValueError, RuntimeError) as error:
                raise ResourceError(
                    f"there is no Ray cluster at {address!r}: {error}", hint="start one with `ray start --head`"
                ) from error
        self.cores = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.wanted: dict[str, str] = {}
        # A job whose node dies is run again by Ray; what a job itself does to its process is its answer.
        self.remote = self.ray.remote(max_retries=RETRIES, num_cpus=1)(run_job)

    def facts(self) -> dict[str, Any]:
        """Say what the driver's environment is, which nodes are held to."""
        import torch

        from torchparity.run.environment import environment

        found = environment(torch.device("cpu"))
        self.wanted = {name: str(found[name]) for name in ALIKE}
        return {**found, "cluster": {name: value for name, value in self.ray.cluster_resources().items() if value}}

    def ask(
        self,
        job: str,
        payload: dict[str, Any],
        limits: Limits,
        *,
        files: dict[str, bytes] | None = None,
        gpus: int = 0,
    ) -> Future[Outcome]:
        """Have some node do a job."""
        resources: dict[str, Any] = {"num_gpus": gpus} | ({"memory": limits.memory} if limits.memory else {})
        reference = self.remote.options(**resources).remote(
            job, payload, files or {}, (limits.seconds, limits.memory), self.wanted
        )
        done: Future[Outcome] = Future()
        reference.future().add_done_callback(answered(done, self.ray.exceptions.RayError))
        return done

    def close(self) -> None:
        """Leave the cluster; what still runs there ends by itself."""
        self.ray.shutdown()


class Cluster:
    """Runs the cells of a sweep on a Ray cluster."""

    def __init__(self, base: Path, *, address: str) -> None:
        self.base, self.connection = base, Connection(address)
        self.width = AHEAD + self.connection.cores

    def facts(self) -> dict[str, Any]:
        """Say what the driver's environment is, which nodes are held to."""
        return self.connection.facts()

    def submit(self, cell: Cell) -> Future[Answer]:
        """Have the cluster run a cell."""
        gpus = int(str(cell.options.get("device", "")).startswith("cuda"))
        limits = Limits(seconds=cell.seconds, memory=cell.memory)
        done: Future[Answer] = Future()
        running = self.connection.ask(CELL_JOB, payload_of(cell, self.base), limits, gpus=gpus)
        running.add_done_callback(passing_on(cell, done))
        return done

    def close(self) -> None:
        """Leave the cluster."""
        self.connection.close()


class Questions:
    """Has a Ray cluster judge bundles: minify's questions, wherever there is a core."""

    def __init__(self, address: str) -> None:
        self.connection = Connection(address)
        self.width = self.connection.cores
        self.connection.facts()

    def judge(self, bundle: Path, limits: Limits) -> Future[Outcome]:
        """Judge a bundle on some node, which gets its files: nodes need share no disk."""
        files = {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
        devices = [str(entry["device"]) for entry in read_facts(bundle)["storages"]]
        gpus = int(any(device.startswith("cuda") for device in devices))
        return self.connection.ask(BUNDLE_JOB, {}, limits, files=files, gpus=gpus)

    def close(self) -> None:
        """Leave the cluster."""
        self.connection.close()


def reach(address: str) -> None:
    """Raise where nobody listens: Ray would wait for two minutes, and then leave the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()


def answered(done: Future[Outcome], lost: type[Exception]) -> Callable[[Future[dict[str, Any]]], None]:
    """Return what turns the answer of a node into an outcome; `lost` is what Ray says when it gives up on a job."""

    def heard(future: Future[dict[str, Any]]) -> None:
        try:
            found = future.result()
            if "strange" in found:
                raise ResourceError(
                    f"a node is not like the driver: {found['strange']}", hint="give every node the same environment"
                )
            done.set_result(found["outcome"])
        except lost as error:
            facts = ErrorFacts(type=type(error).__name__, message=f"the cluster gave it up: {error}"[:500])
            done.set_result(Outcome(ending=Ending.RAISED, error=facts))
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
