"""One model, checked by all ranks at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from torchparity.compilers.candidates import Compiled
from torchparity.compilers.recipe import recipe_of
from torchparity.judge import reasons
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import Settings, settings_of
from torchparity.ranks.agreement import compare_graphs
from torchparity.ranks.talk import Ranks
from torchparity.records import JointVerdict, Progress, ProgressCallback, RunRecord, Status, Verdict
from torchparity.records.wire import plain_data, record_from
from torchparity.request import Request
from torchparity.run.plan import plan_of
from torchparity.run.subject import Subject, owned_modules


def check_together(
    subject: Subject, ranks: Ranks, request: Request, *, progress: ProgressCallback | None = None
) -> JointVerdict:
    """Check one model on all ranks at once; return, on each of them, what all of them found.

    They run it equally often, and their graphs must be the same. Where only gradients differ, which ranks average, they
    are checked once more as each rank has them before (for DistributedDataParallel).
    """

    def judge() -> tuple[Verdict, ...]:
        found = ranks.together("verdict", lambda: plain_data(check_in_step(subject, ranks, request, progress=progress)))
        return tuple(record_from(Verdict, entry) for entry in found)

    joint = JointVerdict(verdicts=judge())
    if joint.status is not Status.DIFFERS or joint.guilty or not averaging(subject.model):
        return joint
    with contextlib.ExitStack() as stack:
        for module in averaging(subject.model):
            stack.enter_context(module.no_sync())
        return replace(joint, unaveraged=judge())


def check_in_step(
    subject: Subject, ranks: Ranks, request: Request, *, progress: ProgressCallback | None = None
) -> Verdict:
    """Check a model on this rank, run by run with the others."""
    recipe, plan = recipe_of(request, dynamic=subject.dynamic), plan_of(request, subject)
    settings = in_step(settings_of(request, progress=progress), ranks)
    difference = compare_graphs(subject, plan, recipe, ranks)
    if difference is None:
        return Oracle(subject, plan, Compiled(recipe), settings).judge()
    return Verdict(
        status=Status.DIFFERS,
        reasons=(reasons.graphs_differ(difference),),
        recipe=recipe.facts(),
        subject=subject.title(),
    )


def in_step(settings: Settings, ranks: Ranks) -> Settings:
    """Return settings with which every rank tells the others of each run, and makes as many as they do."""
    candidate = False

    def begin(event: Progress) -> None:
        nonlocal candidate
        candidate = event.candidate
        ranks.begin(event.name)
        if settings.progress is not None:
            settings.progress(event)

    def ended(record: RunRecord) -> None:
        failure = (record.detail or record.ending) if record.ending == "raised" else ""
        ranks.gather(f"end of {record.name}", record.ending, failure=failure, differs=bool(failure) and candidate)

    return replace(settings, progress=begin, agree=ranks.most, ended=ended)


def averaging(model: Callable[..., Any]) -> list[DistributedDataParallel]:
    """Return the modules of a model that average their gradients over the ranks, and can leave it."""
    modules = [module for root in owned_modules(model).values() for module in root.modules()]
    return [module for module in modules if isinstance(module, DistributedDataParallel)]
