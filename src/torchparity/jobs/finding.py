"""Jobs that find out about a failure: which graph, which operation, which stage, which pass."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchparity.diagnosis.blame import blame as blame_case
from torchparity.diagnosis.locate import locate as locate_case
from torchparity.diagnosis.passes import as_graph, check_passes_of_inductor, check_user_passes
from torchparity.diagnosis.whole import blame_whole
from torchparity.errors import CaseError, NoFailingGraph, TargetError, UsageError
from torchparity.execute.isolated import run_bundle
from torchparity.execute.outcome import Limits
from torchparity.execute.pool import Pool
from torchparity.jobs.arguments import recipe_for, subject_of
from torchparity.jobs.watching import capture, capture_program
from torchparity.observe.capture import AOT, DYNAMO
from torchparity.records import (
    Blame,
    Located,
    PassesReport,
    Status,
    Verdict,
)
from torchparity.repro.bundle import write_bundle
from torchparity.repro.case import Case
from torchparity.run.loss import Loss
from torchparity.run.step import OptimizerFactory
from torchparity.run.subject import Subject
from torchparity.run.wishes import plan_for


def find_failing(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    train: bool = False,
    backward: bool | None = None,
    autocast: torch.dtype | str | None = None,
    seed: int = 0,
    pool: Pool | None = None,
    limits: Limits | None = None,
) -> tuple[Case, Verdict]:
    """Capture a model; return the first of its graphs that fails, judged in workers, and how; refuse where none does.

    Graphs are asked as Dynamo leaves them first: what a decomposition does wrong is already in the graphs after
    AOTAutograd, where eager and compiled agree again. Then the model's own calls of torch: what Dynamo does wrong is
    already in its graphs.
    """
    subject = subject_of(model, args, kwargs, ())
    how: dict[str, Any] = {"dynamic": dynamic, "train": train, "backward": backward, "autocast": autocast, "seed": seed}
    how |= {"mode": mode, "options": options, "config": config}
    asked, unknown = 0, list[str]()
    with (
        tempfile.TemporaryDirectory(prefix="torchparity-") as name,
        contextlib.nullcontext(pool) if pool is not None else Pool(workers=1) as workers,
    ):
        for case in candidates(subject, backend, Path(name), **how):
            asked += 1
            verdict = run_bundle(Path(name) / case.name, pool=workers, limits=limits)
            if verdict.status is Status.DIFFERS:
                return case, verdict
            if verdict.status is Status.UNKNOWN:
                unknown.append(f"{case.name}: {'; '.join(verdict.reasons)}")
    rest = f", {len(unknown)} of them unknown ({unknown[0]})" if unknown else ""
    raise NoFailingGraph(
        f"no graph of {subject.title()} fails by itself ({asked} were judged{rest})",
        hint="`torchparity check` judges the model as a whole",
        unknown=len(unknown) or int(asked == 0),
    )


def candidates(subject: Subject, backend: str | Callable[..., Any], folder: Path, **how: Any) -> Iterator[Case]:
    """Yield the cases that may show what is wrong with a model, each as a bundle in a folder."""
    try:
        cases = capture(subject, backend=backend, out=folder, **how)
    except TargetError:
        cases = []  # Dynamo itself may be what fails.
    yield from (case for case in cases if case.level == DYNAMO)
    try:
        program = capture_program(subject, backend=backend, **how)
    except CaseError:
        program = None
    if program is not None:
        write_bundle(program, folder / program.name)
        yield program
    yield from (case for case in cases if case.level == AOT)


def locate(
    what: Case | Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    pool: Pool | None = None,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
    **how: Any,
) -> Located:
    """Return which operation introduces the error of a case, or of the first graph of a model that fails.

    `how` is what `find_failing` takes besides: `backend`, `mode`, `dynamic`, `train`, `backward`, `autocast`, ...
    """
    case = what if isinstance(what, Case) else find_failing(what, args, kwargs, pool=pool, limits=limits, **how)[0]
    return locate_case(case, pool=pool, limits=limits, listen=listen)


def blame(
    what: Case | Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    pool: Pool | None = None,
    limits: Limits | None = None,
    listen: Callable[[str], None] | None = None,
    **how: Any,
) -> Blame:
    """Return which stage of the compiler the failure of a case, or of a model, comes from; `how` is as for `locate`.

    Where each graph of a model agrees alone and the model differs all the same, what lies between is looked for.
    """
    if isinstance(what, Case):
        return blame_case(what, pool=pool, limits=limits, listen=listen)
    subject = subject_of(what, args, kwargs, ())
    try:
        case, _ = find_failing(subject, pool=pool, limits=limits, **how)
    except NoFailingGraph:
        return blame_model(subject, listen=listen, **how)
    return blame_case(case, pool=pool, limits=limits, listen=listen)


def blame_model(
    subject: Subject,
    *,
    listen: Callable[[str], None] | None = None,
    train: bool = False,
    backward: bool | None = None,
    autocast: torch.dtype | str | None = None,
    seed: int = 0,
    **recipe: Any,
) -> Blame:
    """Return what is to blame where a model differs and none of its graphs does by itself."""
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        autocast=autocast,
        seed=seed,
    )
    return blame_whole(subject, plan, recipe_for(subject, **recipe), listen=listen)


def check_passes(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    passes: Sequence[Callable[[torch.fx.GraphModule], Any]] | None = None,
    iterations: int = 1,
    optimizer: OptimizerFactory | str | None = None,
    train: bool = False,
    backward: bool | None = None,
    loss: Loss | None = None,
    dynamic: bool | None = None,
    seed: int = 0,
) -> PassesReport:
    """Judge the numbers before and after every pass of inductor, or after each of `passes`, functions on a graph.

    Passes of one's own are judged by outputs, gradients and, after `iterations` steps of an optimizer, parameters;
    `backward` is on wherever something can be differentiated. A pass of inductor is judged on the graph it changes.
    """
    subject = subject_of(model, args, kwargs, ())
    if iterations < 1:
        raise UsageError(f"{iterations} iterations leave nothing to compare", hint="give 1 or more")
    learns = isinstance(subject.model, torch.nn.Module) and any(
        parameter.requires_grad for parameter in subject.model.parameters()
    )
    wants = backward if backward is not None else train or (passes is not None and learns)
    plan = plan_for(
        subject,
        train=train,
        backward=wants,
        steps=iterations if learns and wants else None,
        optimizer=optimizer,
        loss=loss,
        seed=seed,
    )
    if passes is None:
        return check_passes_of_inductor(subject, plan, dynamic=dynamic)
    return check_user_passes(as_graph(subject.model), subject, plan, passes)
