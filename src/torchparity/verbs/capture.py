"""`capture`: every graph of one run as a case; and the model's own calls of torch as one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from torchparity.compilers.recipe import recipe_of
from torchparity.errors import TargetError, UsageError
from torchparity.observe.capture import Recorder
from torchparity.observe.program import traced_program
from torchparity.repro.case import Case
from torchparity.request import Options, Request, request_for
from torchparity.run.plan import plan_of, settled
from torchparity.run.step import Runner
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.asking import subject_of


class CaptureWarning(UserWarning):
    """A graph that was seen and could not be written down."""


def capture(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    calls: int = 1,
    out: str | Path | None = None,
    **options: Unpack[Options],
) -> list[Case]:
    """Run a model once, compiled, and return every graph of it as a case; with `out`, write the bundles as well.

    The graphs are run eagerly, so that capturing is safe whatever the backend does with them. `calls` is how many
    calls of each graph are kept. A graph that cannot be written down exactly is a CaptureWarning.
    """
    if calls < 1:
        raise UsageError(f"{calls} calls leave nothing to capture", hint="keep at least the first call of each graph")
    subject = subject_of(model, args, kwargs, input_sets)
    cases, notes = captured(subject, request_for("capture", options), Path(out) if out is not None else None, calls)
    for note in notes:
        warnings.warn(note, CaptureWarning, stacklevel=2)
    return cases


def captured(subject: Subject, request: Request, out: Path | None, calls: int = 1) -> tuple[list[Case], list[str]]:
    """Return the graphs of one run, and what could not be written down or seen."""
    request = settled(request, subject)
    plan = plan_of(request, subject)
    recipe = recipe_of(request, dynamic=subject.dynamic).fitting(plan)
    recorder = Recorder(
        replace(request, dynamic=recipe.dynamic, config=recipe.config, options=recipe.options), out, calls
    )
    watching = replace(recipe.with_eager_random(), backend=recorder, mode=None, options={})
    runner = Runner(subject, plan)
    try:
        with torch.enable_grad(), watching.active():
            ending = runner.run(watching.build(subject.model), lambda leaf: None)
    finally:
        torch.compiler.reset()
        runner.release()
    notes = [f"{refusal.name}: {refusal.reason} ({refusal.hint})" for refusal in recorder.refusals]
    if ending.failure is None:
        return recorder.cases, notes
    told = f"{ending.failure.type}: {ending.failure.message}"
    if not recorder.cases:
        raise TargetError(
            f"the model could not be captured: {told}",
            hint="see whether it runs without torch.compile, and with backend='eager'",
        )
    return recorder.cases, [*notes, f"the run ended early: {told} (graphs after that were not seen)"]


def captured_program(subject: Subject, request: Request) -> Case | None:
    """Run a model once, eagerly, and return its own calls of torch as a case; None where eager itself fails."""
    request = settled(request, subject)
    plan = plan_of(request, subject)
    recipe_of(request, dynamic=subject.dynamic)
    kept: list[Case] = []
    runner = Runner(subject, replace(plan, optimizer=None))
    try:
        model = traced_program(subject.model, request, keep=kept)
        runner.run(model, lambda leaf: None)
    finally:
        runner.release()
    return kept[0] if kept else None
