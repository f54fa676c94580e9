"""`torchrun ... -m torchparity check`: every rank checks, rank 0 speaks, and all of them end with the same code."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as distributed
from rich.console import Console

from torchparity.cli.complaint import complain
from torchparity.cli.outputs import Outputs
from torchparity.cli.progress import ProgressLine
from torchparity.cli.target import find_target, make_subject
from torchparity.errors import ParityError, TargetError, UsageError
from torchparity.execute.ranks import Place, Ranks, leave
from torchparity.execute.vigil import Vigil
from torchparity.jobs.checking import check_together
from torchparity.records import JointVerdict
from torchparity.report.ranks import render_joint, render_loss
from torchparity.run.subject import Subject

# Importing the user's module, and all that it imports, is no run.
LOADING = 60.0
# How torch says that a model asks for a process group before there is one.
NO_GROUP = "process group has not been initialized"


def check_on_ranks(
    place: Place,
    target: str,
    options: dict[str, Any],
    *,
    device: str | None,
    seconds: float,
    limit: float,
    same_graphs: bool,
    leaves: int,
    outputs: Outputs,
    quiet: bool,
) -> NoReturn:
    """Check a target together with the other ranks, and end this process as all of them end."""
    if seconds <= 0 or limit <= 0:
        raise UsageError(
            f"{min(seconds, limit):g} s leave the ranks no time", hint="give --rank-timeout and --timeout some seconds"
        )
    console = Console()
    ranks = Ranks(place, seconds=seconds, limit=limit, same_graphs=same_graphs)
    vigil = Vigil(ranks, lambda loss: render_loss(loss, console))
    vigil.start()

    def report(joint: JointVerdict) -> None:
        if ranks.rank == 0:
            render_joint(joint, console, leaves=leaves)
            outputs.write(joint)

    made: list[Subject] = []
    try:
        ranks.begin("loading", at_least=LOADING)
        ranks.together("loaded", lambda: made.append(load_in_group(target, device)))
        with ProgressLine(quiet=quiet or ranks.rank > 0) as progress:
            joint = check_together(made[0], ranks, progress=progress, **options)
        ranks.together("reported", lambda: report(joint))
        code = joint.exit_code
    except ParityError as error:
        code = error.exit_code
        if ranks.rank == 0:
            complain(error)
    vigil.finish()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    leave(code)


def load_in_group(target: str, device: str | None) -> Subject:
    """Load a target in a process group: its own, or, where it asks for one and makes none, one that we make."""
    found, name = find_target(target)
    try:
        subject = make_subject(found, name, device=device)
    except TargetError as error:
        if distributed.is_initialized() or NO_GROUP not in error.message.lower():
            raise
        start_group()
        return make_subject(found, name, device=device)
    if not distributed.is_initialized():
        start_group()
    return subject


def start_group() -> None:
    """Start the process group of all ranks: gloo, and NCCL where there is CUDA."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
        distributed.init_process_group("cpu:gloo,cuda:nccl")
    else:
        distributed.init_process_group("gloo")
