"""`check`: does the compiled model compute what the model computes?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from torchparity.errors import AccuracyError
from torchparity.judge.asking import oracle_for
from torchparity.records import ProgressCallback, Severity, Status, Verdict
from torchparity.report.terminal import plain_text
from torchparity.request import Options, request_for
from torchparity.run.subject import Subject
from torchparity.run.target import Target
from torchparity.verbs.asking import subject_of


def check(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    progress: ProgressCallback | None = None,
    **options: Unpack[Options],
) -> Verdict:
    """Say whether the compiled model computes what the model computes.

    By default: eval mode, in the caller's gradient mode, and backwards where an input asks for a gradient. `train` is
    train mode with a backward pass, `backward` a backward pass in eval mode (or none), `no_grad` and `inference_mode`
    turn gradients off, `optimizer` and `steps` add optimizer steps. The model, its inputs, its gradients and all random
    generators are left as they were found.
    """
    subject = subject_of(model, args, kwargs, input_sets)
    return oracle_for(subject, request_for("check", options), progress=progress).judge()


def assert_parity(
    model: Callable[..., Any] | Subject | Target | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_sets: Sequence[Any] = (),
    fail_on: Severity | str = Severity.NONE,
    **options: Unpack[Options],
) -> Verdict:
    """Raise AccuracyError, with the table, unless `check` says SAME; return the verdict.

    What differs by less than the severity `fail_on` passes.
    """
    level = fail_on if isinstance(fail_on, Severity) else Severity(fail_on)
    verdict = check(model, args, kwargs, input_sets=input_sets, **options)
    if verdict.fails(level) or verdict.status is Status.UNKNOWN:
        raise AccuracyError(
            plain_text(verdict), hint="`verdict.leaves` of this exception holds every number", verdict=verdict
        )
    return verdict
