"""`torchrun ... -m torchparity check`: every rank checks, rank 0 speaks, and all of them end with the same code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch
import torch.distributed as distributed

from torchparity.errors import ParityError, TargetError, UsageError
from torchparity.ranks.checking import check_together
from torchparity.ranks.talk import Place, Ranks, leave
from torchparity.ranks.vigil import Vigil
from torchparity.records import JointVerdict, Loss, ProgressCallback
from torchparity.request import Request
from torchparity.run.subject import Subject
from torchparity.run.target import Target, find_target, make_subject

# Importing the user's module, and all that it imports, is no run.
LOADING = 60.0
# How torch says that a model asks for a process group before there is one.
NO_GROUP = "process group has not been initialized"


def check_on_ranks(
    place: Place,
    target: Target,
    request: Request,
    *,
    seconds: float,
    limit: float,
    same_graphs: bool,
    progress: ProgressCallback | None,
    report: Callable[[JointVerdict], None],
    lost: Callable[[Loss], None],
    complain: Callable[[ParityError], None],
) -> NoReturn:
    """Check a target together with the other ranks, and end this process as all of them end.

    Rank 0 alone shows progress, reports and complains; whoever is left says why the ranks were `lost`.
    """
    if seconds <= 0 or limit <= 0:
        raise UsageError(
            f"{min(seconds, limit):g} s leave the ranks no time", hint="give --rank-timeout and --timeout some seconds"
        )
    ranks = Ranks(place, seconds=seconds, limit=limit, same_graphs=same_graphs)
    speaks = ranks.rank == 0
    vigil = Vigil(ranks, lost)
    vigil.start()
    made: list[Subject] = []
    try:
        ranks.begin("loading", at_least=LOADING)
        ranks.together("loaded", lambda: made.append(load_in_group(target)))
        joint = check_together(made[0], ranks, request, progress=progress if speaks else None)
        ranks.together("reported", lambda: report(joint) if speaks else None)
        code = joint.exit_code
    except ParityError as error:
        code = error.exit_code
        if speaks:
            complain(error)
    vigil.finish()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    leave(code)


def load_in_group(target: Target) -> Subject:
    """Load a target in a process group: its own, or, where it asks for one and makes none, one that we make."""
    found, name = find_target(target.name)
    try:
        subject = make_subject(found, name, device=target.device)
    except TargetError as error:
        if distributed.is_initialized() or NO_GROUP not in error.message.lower():
            raise
        start_group()
        return make_subject(found, name, device=target.device)
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
