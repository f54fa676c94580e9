"""Jobs that end in a verdict on a whole model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torchparity.compare.judgement import Tolerance
from torchparity.errors import AccuracyError, UsageError
from torchparity.execute import reasons
from torchparity.execute.ground import CANDIDATE_RUNS, NOISE_RUNS, Settings
from torchparity.execute.oracle import Oracle
from torchparity.execute.ranks import Ranks, in_step
from torchparity.execute.wire import pack, verdict_from
from torchparity.jobs.arguments import recipe_for, subject_of
from torchparity.observe.agreement import compare_graphs
from torchparity.records import (
    JointVerdict,
    Kind,
    ProgressCallback,
    Status,
    Verdict,
)
from torchparity.report.terminal import plain_text
from torchparity.run.loss import Loss
from torchparity.run.step import OptimizerFactory
from torchparity.run.subject import Subject, owned_modules
from torchparity.run.wishes import ignored_kinds, plan_for


def check(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    fresh_cache: bool = False,
    train: bool = False,
    backward: bool | None = None,
    steps: int | None = None,
    optimizer: OptimizerFactory | str | None = None,
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_sets: Sequence[Any] = (),
    input_gradients: bool | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    ignore: Iterable[str | Kind] = (),
    reference: bool = True,
    noise_runs: int = NOISE_RUNS,
    candidate_runs: int = CANDIDATE_RUNS,
    progress: ProgressCallback | None = None,
    ranks: Ranks | None = None,
) -> Verdict:
    """Say whether the compiled model computes what the model computes.

    By default: eval mode, forward only. `train` is train mode with a backward pass, `backward`
    alone a backward pass in eval mode, `optimizer` and `steps` add optimizer steps. The model, its
    inputs, its gradients and all random generators are left as they were found. `ranks` are those that check
    the same model at the same time: they run it equally often, and their graphs must be the same.
    """
    subject = subject_of(model, args, kwargs, input_sets)
    recipe = recipe_for(
        subject,
        backend=backend,
        mode=mode,
        dynamic=dynamic,
        fullgraph=fullgraph,
        options=options,
        config=config,
        fresh_cache=fresh_cache,
    )
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        steps=steps,
        optimizer=optimizer,
        autocast=autocast,
        loss=loss,
        input_gradients=input_gradients,
        seed=seed,
    )
    if noise_runs < 2 or candidate_runs < 1:
        raise UsageError(
            f"{noise_runs} noise runs and {candidate_runs} candidate runs are too few to judge by",
            hint="use at least 2 noise runs and 1 candidate run",
        )
    if tolerance is not None and not tolerance > 0:
        raise UsageError(
            f"a tolerance of {tolerance} allows nothing",
            hint="give a positive number, or leave it out to be judged by the model's own noise",
        )
    settings = Settings(
        tolerance=Tolerance(relative=tolerance, ignore=ignored_kinds(ignore)),
        noise_runs=noise_runs,
        candidate_runs=candidate_runs,
        reference=reference,
        progress=progress,
    )
    if ranks is not None:
        settings = in_step(settings, ranks)
        difference = compare_graphs(subject, plan, recipe, ranks)
        if difference is not None:
            return Verdict(
                status=Status.DIFFERS,
                reasons=(reasons.graphs_differ(difference),),
                recipe=recipe.facts(),
                subject=subject.title(),
            )
    return Oracle(subject, plan, recipe, settings).judge()


def check_together(subject: Subject, ranks: Ranks, **options: Any) -> JointVerdict:
    """Check one model on all ranks at once; return, on each of them, what all of them found.

    Where only gradients differ, which ranks average, they are checked once more as each rank has them before
    (for DistributedDataParallel).
    """

    def judge() -> tuple[Verdict, ...]:
        found = ranks.together("verdict", lambda: pack(check(subject, ranks=ranks, **options)))
        return tuple(verdict_from(entry) for entry in found)

    joint = JointVerdict(verdicts=judge())
    if joint.status is not Status.DIFFERS or joint.guilty or not averaging(subject.model):
        return joint
    with contextlib.ExitStack() as stack:
        for module in averaging(subject.model):
            stack.enter_context(module.no_sync())
        return replace(joint, unaveraged=judge())


def averaging(model: Callable[..., Any]) -> list[DistributedDataParallel]:
    """Return the modules of a model that average their gradients over the ranks, and can leave it."""
    modules = [module for root in owned_modules(model).values() for module in root.modules()]
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def assert_parity(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Verdict:
    """Raise AccuracyError, with the table, unless `check` says SAME; return the verdict."""
    verdict = check(model, args, kwargs, **options)
    if verdict.status is not Status.SAME:
        raise AccuracyError(
            plain_text(verdict),
            hint="`verdict.leaves` of this exception holds every number",
            verdict=verdict,
        )
    return verdict
