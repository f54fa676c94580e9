"""What the arguments of a job make: the subject, and the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchparity.run.recipe import Recipe
from torchparity.run.subject import Subject


def recipe_for(
    subject: Subject,
    *,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **how: Any,
) -> Recipe:
    """Return the recipe that the arguments of a job make, or refuse what torch would not understand."""
    return Recipe(
        dynamic=subject.dynamic if dynamic is None else dynamic,
        options=dict(options or {}),
        config=dict(config or {}),
        **how,
    ).validated()


def subject_of(
    model: Callable[..., Any] | Subject,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    input_sets: Sequence[Any],
) -> Subject:
    """Return the subject that the arguments of a job make, or the one that was given."""
    subject = model if isinstance(model, Subject) else Subject(model, args, dict(kwargs or {}))
    return replace(subject, input_sets=tuple(input_sets)) if input_sets else subject
