"""Jobs that watch a compilation: its graphs as cases, its story."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchparity.errors import TargetError, UsageError
from torchparity.jobs.arguments import recipe_for, subject_of
from torchparity.observe.capture import Recorder
from torchparity.observe.program import traced_program
from torchparity.observe.story import tell_story, with_calls
from torchparity.records import (
    ProgressCallback,
    Story,
)
from torchparity.repro.case import Case
from torchparity.run.loss import Loss
from torchparity.run.step import OptimizerFactory, Runner
from torchparity.run.subject import Subject
from torchparity.run.wishes import plan_for


class CaptureWarning(UserWarning):
    """A graph that was seen and could not be written down."""


def capture(
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
    steps: int | None = None,
    optimizer: OptimizerFactory | str | None = None,
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_sets: Sequence[Any] = (),
    seed: int = 0,
    calls: int = 1,
    out: str | Path | None = None,
) -> list[Case]:
    """Run a model once, compiled, and return every graph of it as a case; with `out`, write the bundles as well.

    The graphs are run eagerly, so that capturing is safe whatever the backend does with them. `calls` is how many
    calls of each graph are kept. A graph that cannot be written down exactly is a CaptureWarning.
    """
    if calls < 1:
        raise UsageError(f"{calls} calls leave nothing to capture", hint="keep at least the first call of each graph")
    subject = subject_of(model, args, kwargs, input_sets)
    recipe = recipe_for(subject, backend=backend, mode=mode, dynamic=dynamic, options=options, config=config)
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        steps=steps,
        optimizer=optimizer,
        autocast=autocast,
        loss=loss,
        seed=seed,
    )
    recorder = Recorder(recipe.fitting(plan), out=Path(out) if out is not None else None, calls=calls)
    watching = replace(recipe.with_eager_random(), backend=recorder)
    runner = Runner(subject, plan)
    try:
        with torch.enable_grad(), watching.active():
            ending = runner.run(watching.build(subject.model), lambda leaf: None)
    finally:
        watching.release()
        runner.release()
    for refusal in recorder.refusals:
        warnings.warn(f"{refusal.name}: {refusal.reason} ({refusal.hint})", CaptureWarning, stacklevel=2)
    if ending.failure is not None and not recorder.cases:
        raise TargetError(
            f"the model could not be captured: {ending.failure.type}: {ending.failure.message}",
            hint="see whether it runs without torch.compile, and with backend='eager'",
        )
    if ending.failure is not None:
        told = f"the run ended early: {ending.failure.type}: {ending.failure.message}"
        warnings.warn(f"{told} (graphs after that were not seen)", CaptureWarning, stacklevel=2)
    return recorder.cases


def capture_program(
    subject: Subject,
    *,
    train: bool,
    backward: bool | None,
    autocast: torch.dtype | str | None,
    seed: int,
    **recipe: Any,
) -> Case | None:
    """Run a model once, eagerly, and return its own calls of torch as a case; None where eager itself fails."""
    plan = plan_for(
        subject,
        train=train,
        backward=backward,
        autocast=autocast,
        seed=seed,
    )
    kept: list[Case] = []
    runner = Runner(subject, replace(plan, optimizer=None))
    try:
        runner.run(
            traced_program(subject.model, recipe_for(subject, **recipe), backward=plan.backward, keep=kept),
            lambda leaf: None,
        )
    finally:
        runner.release()
    return kept[0] if kept else None


def explain(
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
    autocast: torch.dtype | str | None = None,
    loss: Loss | None = None,
    input_sets: Sequence[Any] = (),
    calls: int = 2,
    batches: Sequence[int] = (),
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Story:
    """Compile a model, call it, and tell what the compiler did: frames, graph breaks, subgraphs, guards, recompiles.

    The model is called `calls` times with each of its inputs, then with the first of them cut or repeated to each of
    `batches` rows: what does not fit the guards shows as a recompile. An exception of the model or of the compiler is
    the end of the story, not an error.
    """
    for word, number in [("calls", calls), *(("rows", batch) for batch in batches)]:
        if number < 1:
            raise UsageError(f"{number} {word} leave nothing to tell", hint="give 1 or more")
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
        autocast=autocast,
        loss=loss,
        seed=seed,
    )
    subject = with_calls(subject, times=calls, batches=tuple(batches))
    return tell_story(subject, replace(plan, optimizer=None), recipe, progress=progress)
