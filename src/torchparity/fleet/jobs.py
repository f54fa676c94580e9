"""What a worker does with a cell: load its target, check it, and say what it took."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable
from typing import Any

from torchparity.errors import ParityError
from torchparity.fleet.cells import Cell
from torchparity.fleet.suite import PLACES
from torchparity.judge.asking import oracle_for
from torchparity.judge.isolated import answer
from torchparity.records import ProgressCallback, Verdict
from torchparity.request import Request, request_for
from torchparity.run.environment import environment
from torchparity.run.target import Target

CELL_JOB = "torchparity.fleet.jobs:cell_job"
FACTS_JOB = "torchparity.fleet.jobs:facts_job"
PRELOAD = ("torchparity.fleet.jobs", "torchparity.judge.isolated")

Announce = Callable[[str], None]


def cell_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Check a cell, in the process that this is called in."""
    warnings.filterwarnings("ignore")
    os.chdir(payload["base"])  # Files are named as seen from the suite's folder.
    cell = Cell(**payload["cell"])

    def judge(progress: ProgressCallback) -> Verdict:
        return oracle_for(target_of(cell).load(), request_of(cell), progress=progress).judge()

    found = answer(judge, announce)
    return {**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def facts_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Say what this environment is."""
    import torch

    try:
        return {"facts": environment(torch.device("cpu"))}
    except ParityError as error:
        return {"error": error.to_data()}


def target_of(cell: Cell) -> Target:
    """Return what a cell checks."""
    given = {name: cell.options[name] for name in PLACES if name in cell.options}
    return Target(cell.target, parameters=cell.parameters, **given)


def request_of(cell: Cell) -> Request:
    """Return how a cell is compiled, run and judged."""
    return request_for("check", {name: value for name, value in cell.options.items() if name not in PLACES})
