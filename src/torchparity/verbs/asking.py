"""What verbs have in common: who is meant, the workers that are asked, and the limits of a question."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchparity.errors import TargetError, UsageError
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

# What workers import before they are asked anything: the jobs, and all that these stand on.
PRELOAD = ("torchparity.verbs.jobs", "torchparity.judge.isolated")
ONE_GRAPH = Limits(seconds=600.0)


def subject_of(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    input_sets: Sequence[Any] = (),
) -> Subject:
    """Return the subject that the arguments of a verb make, the one that was given, or the one that a text names."""
    if isinstance(model, str | Target):
        target = model if isinstance(model, Target) else Target(model)
        if args or kwargs:
            raise UsageError(
                f"{target.title()} names its inputs itself", hint="leave them out, or give the model and not a name"
            )
        model = target.load()
    subject = model if isinstance(model, Subject) else Subject(model, args, dict(kwargs or {}))
    if not callable(subject.model):
        raise TargetError(
            f"a {type(subject.model).__name__} is not a model: it cannot be called",
            hint="give a module or a function with its inputs, or the name of a target: 'file.py:name'",
        )
    return replace(subject, input_sets=tuple(input_sets)) if input_sets else subject


def open_pool(workers: int, *, compilers: bool = True) -> Pool:
    """Start workers that know our jobs."""
    return Pool(workers=workers, preload=PRELOAD if compilers else (), compilers=compilers)


@contextlib.contextmanager
def using(pool: Pool | None, *, workers: int = 1) -> Iterator[Pool]:
    """Yield the pool that was given, or one of its own for as long as it is needed."""
    if pool is not None:
        yield pool
        return
    with open_pool(workers) as own:
        yield own
