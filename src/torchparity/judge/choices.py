"""Every kernel that tuning may take, one after the other: another day, or another GPU, takes another one.

Each round compiles the model anew with the next choice of every operation at once. Where a round fails, each of its
operations is tried alone, so that the kernel that is wrong has a name.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from torchparity import torchapi
from torchparity.compilers.candidates import Candidate, tunes
from torchparity.judge import reasons
from torchparity.judge.appeals import Appeals, CandidateRun
from torchparity.records import Status, Tuned, Verdict

if TYPE_CHECKING:
    from torchparity.judge.oracle import Oracle


def hearing_choices(candidate: Candidate, taken: dict[torchapi.Offer, str]) -> contextlib.AbstractContextManager[None]:
    """Hear which kernels are taken, where inductor tunes."""
    return torchapi.heard_choices(taken.__setitem__) if tunes(candidate.facts()) else contextlib.nullcontext()


def tuned_to(offer: torchapi.Offer, taken: str) -> Tuned:
    """Return an operation that was tuned, and what it took."""
    return Tuned(kernel=offer.kernel, shapes=offer.shapes, choices=offer.choices, taken=taken)


def judge_choices(oracle: Oracle, verdict: Verdict) -> Verdict:
    """Judge the model with every kernel that tuning may take for it."""
    rounds = Rounds(oracle)
    rounds.run()
    tuned = tuple(rounds.tuned(oracle.taken))
    unusable = sum(len(entry.unusable) for entry in tuned)
    choices = sum(len(entry.choices) for entry in tuned) - unusable
    wrong = [reasons.wrong_choice(entry.kernel, entry.shapes, name) for entry in tuned for name in entry.wrong]
    runs, seconds = tuple(oracle.ground.records), time.perf_counter() - oracle.started
    verdict = replace(verdict, tuned=tuned, runs=runs, seconds=seconds)
    if not tuned:
        return replace(verdict, reasons=(*verdict.reasons, reasons.no_choices()))
    if not wrong:
        return replace(verdict, reasons=(*verdict.reasons, reasons.right_choices(choices, len(tuned), unusable)))
    told = (reasons.wrong_choices(len(wrong), choices, len(tuned)), *wrong[: reasons.SHOWN], *verdict.reasons)
    if verdict.status is Status.DIFFERS:
        return replace(verdict, reasons=told)
    leaves = tuple(rounds.evidence[0].comparison.reports.values())
    leaves = tuple(sorted(leaves, key=lambda leaf: leaf.status is not Status.DIFFERS))
    failure = rounds.evidence[0].failure
    return replace(verdict, status=Status.DIFFERS, reasons=told, leaves=leaves, failure=failure)


class Rounds:
    """Compiles and judges with one choice after the other; keeps what each operation was offered, and what failed."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.offers: dict[torchapi.Offer, None] = {}
        self.wrong: dict[torchapi.Offer, list[str]] = {}
        self.unusable: dict[torchapi.Offer, list[str]] = {}
        self.evidence: list[CandidateRun] = []

    def run(self) -> None:
        """Go on until every operation has had each of its choices, or the device is lost."""
        place = 0
        while place == 0 or place < max((len(offer.choices) for offer in self.offers), default=0):
            number = place
            found = self.attempt(lambda offer: number if number < len(offer.choices) else 0, f"choice {place + 1}")  # noqa: B023
            if found.fails and not found.lost:
                for offer in [offer for offer in self.offers if place < len(offer.choices)]:
                    found = self.attempt(
                        lambda other, offer=offer: number if other == offer else None,  # type: ignore[misc] # noqa: B023
                        f"choice {place + 1} of {offer.kernel}",
                    )
                    self.note(offer, place, found)
            if found.lost:
                return
            place += 1

    def note(self, offer: torchapi.Offer, place: int, found: CandidateRun) -> None:
        """Keep what came of one choice of one operation. What does not even compile is not taken by a compiler."""
        if found.failure is not None and not found.lost:
            self.unusable.setdefault(offer, []).append(offer.choices[place])
        elif found.fails:
            self.wrong.setdefault(offer, []).append(offer.choices[place])
            self.evidence.append(found)

    def attempt(self, pick: torchapi.Pick, name: str) -> CandidateRun:
        """Compile with some choices, run it, and judge a second run, in which fresh memory is full of NaN."""
        oracle = self.oracle
        candidate = oracle.candidate.unrecorded()

        def picked(offer: torchapi.Offer) -> int | None:
            self.offers.setdefault(offer)
            return pick(offer)

        with torchapi.patched_config(torchapi.NO_CACHES), candidate.active(), torchapi.choosing(picked):
            built = candidate.build(oracle.subject.model)
            found = oracle.run_compiled(built, f"{candidate.name}, {name}")
            if found.failure is None:
                with torchapi.allocating(full_of_nan):
                    found = oracle.run_compiled(built, f"{candidate.name}, {name}, again")
        if not found.lost:
            Appeals(oracle.ground, oracle.tolerance, candidate, oracle.run_compiled).hear([found])
        return found

    def tuned(self, taken: dict[torchapi.Offer, str]) -> list[Tuned]:
        """Return what became of every operation."""
        return [
            replace(
                tuned_to(offer, taken.get(offer, "")),
                wrong=tuple(self.wrong.get(offer, ())),
                unusable=tuple(self.unusable.get(offer, ())),
            )
            for offer in self.offers
        ]


def full_of_nan(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that allocates as another does, with NaN where nothing was promised: who leaves it shows."""

    @functools.wraps(allocate)
    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = allocate(*args, **kwargs)
        if type(made) is torch.Tensor and (made.is_floating_point() or made.is_complex()) and "out" not in kwargs:
            made.detach().fill_(math.nan)
        return made

    return filled if "empty" in getattr(allocate, "__name__", "") else allocate
