"""`passes`: the numbers before and after every pass over a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from torchparity.diagnosis.passes import as_graph, check_passes_of_inductor, check_user_passes
from torchparity.errors import UsageError
from torchparity.records import PassesReport
from torchparity.request import Options, request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.asking import subject_of


def check_passes(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    passes: Sequence[Callable[[torch.fx.GraphModule], Any]] | None = None,
    input_sets: Sequence[Any] = (),
    iterations: int = 1,
    **options: Unpack[Options],
) -> PassesReport:
    """Judge the numbers before and after every pass of inductor, or after each of `passes`, functions on a graph.

    Passes of one's own are judged by outputs, gradients and, after `iterations` steps of an optimizer, parameters;
    `backward` is on wherever something can be differentiated. A pass of inductor is judged on the graph it changes.
    """
    subject = subject_of(model, args, kwargs, input_sets)
    request = request_for("passes" if passes is None else "passes of one's own", options)
    if iterations < 1:
        raise UsageError(f"{iterations} iterations leave nothing to compare", hint="give 1 or more")
    learns = isinstance(subject.model, torch.nn.Module) and any(
        parameter.requires_grad for parameter in subject.model.parameters()
    )
    wants = request.gradients if request.backward is not None else request.train or (passes is not None and learns)
    steps = request.steps or (iterations if learns and wants else None)
    request = replace(request, backward=wants, steps=steps)
    if passes is None:
        return check_passes_of_inductor(subject, request)
    return check_user_passes(as_graph(subject.model), subject, request, passes)
