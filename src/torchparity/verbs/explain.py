"""`explain`: what the compiler did with a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from torchparity.errors import UsageError
from torchparity.observe.story import tell_story, with_calls
from torchparity.records import ProgressCallback, Story
from torchparity.request import RUN_OPTIONS, Options, Request, request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.asking import subject_of


def explain(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    calls: int = 2,
    batches: Sequence[int] = (),
    progress: ProgressCallback | None = None,
    **options: Unpack[Options],
) -> Story:
    """Compile a model, call it, and tell what the compiler did: frames, graph breaks, subgraphs, guards, recompiles.

    The model is called `calls` times with each of its inputs, then with the first of them cut or repeated to each of
    `batches` rows: what does not fit the guards shows as a recompile. An exception of the model or of the compiler is
    the end of the story, not an error.
    """
    for word, number in [("calls", calls), *(("rows", batch) for batch in batches)]:
        if number < 1:
            raise UsageError(f"{number} {word} leave nothing to tell", hint="give 1 or more")
    subject = with_calls(subject_of(model, args, kwargs, input_sets), times=calls, batches=tuple(batches))
    return tell_story(subject, request_for("explain", options), progress=progress)


def told_by_dynamo(subject: Subject, request: Request) -> Story:
    """Tell what Dynamo does with a model. The backend is left out: it was just compiled, and may crash."""
    plain = Request(dynamic=request.dynamic, fullgraph=request.fullgraph, backend="eager")
    plain = replace(plain, config=request.config, **{name: getattr(request, name) for name in RUN_OPTIONS})
    return tell_story(with_calls(subject, times=1), plain)
