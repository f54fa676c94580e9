"""The same judgement on other data: what a model's own data do not show."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchparity import torchapi
from torchparity.errors import ParityError
from torchparity.judge import reasons
from torchparity.judge.ground import EAGER
from torchparity.records import OTHER_RANDOM, Status, Verdict
from torchparity.run.exact_data import with_exact_data
from torchparity.run.other_data import with_other_data
from torchparity.run.subject import Subject
from torchparity.run.undropped import dropouts_of, without_dropout

if TYPE_CHECKING:
    from torchparity.judge.oracle import Oracle


# From this share of the threshold on a leaf comes close to it: correct compilers stay below (docs/design/threshold.md).
CLOSE_SHARE = 0.5
# Data on which one that comes close is looked at again.
CLOSE_LOOKS = 4
HALVES = ("float16", "bfloat16")


def judge_exactly(oracle: Oracle, verdict: Verdict) -> Verdict:
    """Run everything once more on exact data: what stays exact there is compared without any tolerance."""
    found = judge_on(oracle, with_exact_data, exact=False, on_exact_data=True)
    exact = [leaf for leaf in found.leaves if leaf.exact]
    note = reasons.exact_leaves(len(exact), len(found.leaves))
    if found.status is Status.DIFFERS:
        verdict = taken_over(verdict, found, (reasons.on_exact_data(), *found.reasons, note))
    else:
        verdict = replace(verdict, reasons=(*verdict.reasons, note))
    return replace(
        verdict,
        runs=(*verdict.runs, *found.runs),
        exact=tuple(leaf.path for leaf in exact),
        seconds=time.perf_counter() - oracle.started,
    )


def judge_replays(oracle: Oracle, verdict: Verdict) -> Verdict:
    """Run what was recorded on data that it was not recorded with: parameters updated, inputs with other values."""
    try:
        found = judge_on(oracle, with_other_data, exact=False, on_other_data=True)
    except (ParityError, RuntimeError) as error:  # There may be no room for it: what was found stands.
        return replace(verdict, reasons=(*verdict.reasons, reasons.not_on_other_data(error)))
    runs, seconds = (*verdict.runs, *found.runs), time.perf_counter() - oracle.started
    if found.status is Status.DIFFERS and not raises_by_itself(found):
        verdict = taken_over(verdict, found, (reasons.on_other_data(), *found.reasons))
    return replace(verdict, runs=runs, seconds=seconds)


def judge_closely(oracle: Oracle, verdict: Verdict) -> Verdict:
    """Where a leaf comes close to differing, look at it on other data: a wrong result is not always so well hidden.

    Not in half precision: there, closeness is usual, and all leaves are judged together.
    """
    threshold = oracle.tolerance.threshold
    scores = [max(leaf.score, leaf.aggregate_score) for leaf in verdict.leaves]
    # What is beyond the threshold, and SAME, was excused.
    close = [score for score in scores if CLOSE_SHARE * threshold < score <= threshold]
    halves = oracle.plan.autocast or any(leaf.dtype in HALVES for leaf in verdict.leaves)
    if verdict.status is not Status.SAME or not close or halves:
        return verdict
    for look in range(1, CLOSE_LOOKS + 1):
        data = functools.partial(other_data, look)
        try:
            found = judge_on(oracle, data, exact=False, on_other_data=True)
        except (ParityError, RuntimeError):  # There may be no room for it: what was found stands.
            break
        verdict = replace(verdict, runs=(*verdict.runs, *found.runs), seconds=time.perf_counter() - oracle.started)
        if found.status is Status.DIFFERS and not raises_by_itself(found):
            why = (reasons.closely(max(close), look), *found.reasons)
            return replace(taken_over(verdict, found, why), runs=verdict.runs, seconds=verdict.seconds)
    return verdict


def other_data(look: int, subject: Subject, seed: int) -> contextlib.AbstractContextManager[Subject]:
    """Yield a subject with the data of one more look."""
    return with_other_data(subject, seed + look)


def raises_by_itself(found: Verdict) -> bool:
    """Tell whether the model itself raises, which is the data's fault where the data are our own."""
    return any(run.name == EAGER and run.ending == "raised" for run in found.runs)


def judge_without_dropout(oracle: Oracle, verdict: Verdict) -> Verdict:
    """Where the candidate draws other random numbers than eager, judge both while nothing is dropped.

    What differs there differs. What agrees there may still drop wrongly, which nobody can tell: that stays unknown.
    """
    excused = any(leaf.note == OTHER_RANDOM for leaf in verdict.leaves)
    if not excused or torchapi.is_distributed() or not dropouts_of(oracle.subject):
        return verdict
    try:
        found = judge_on(oracle, without_dropout, anew=True, allow_eager=oracle.settings.allow_eager)
    except (ParityError, RuntimeError):  # There may be no room for it: what was found stands.
        return verdict
    runs, seconds = (*verdict.runs, *found.runs), time.perf_counter() - oracle.started
    if found.status is Status.DIFFERS:
        verdict = taken_over(verdict, found, (reasons.differs_undropped(), *found.reasons))
    elif found.status is Status.SAME:
        verdict = replace(verdict, reasons=(*verdict.reasons, reasons.same_undropped(len(found.leaves))))
    return replace(verdict, runs=runs, seconds=seconds)


def judge_on(
    oracle: Oracle,
    data: Callable[[Subject, int], contextlib.AbstractContextManager[Subject]],
    *,
    anew: bool = False,
    **changed: Any,
) -> Verdict:
    """Judge what was built for a subject on other data; built `anew`, where it is another program with them."""
    oracle.ground.runner.release()
    with data(oracle.subject, oracle.plan.seed) as subject:
        settings = replace(oracle.settings, **{"allow_eager": True, **changed})
        again = type(oracle)(subject, oracle.plan, oracle.candidate, settings)
        if not anew:
            again.built, again.held = oracle.built, oracle.held
        try:
            return again.judge_once()
        finally:
            again.ground.runner.release()


def taken_over(verdict: Verdict, found: Verdict, why: tuple[str, ...]) -> Verdict:
    """Return what other data show as the verdict on the model."""
    return replace(found, reasons=why, recipe=verdict.recipe, compiled=verdict.compiled, tuned=verdict.tuned)
