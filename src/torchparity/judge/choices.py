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
    if oracle.built is None or oracle.ground.runner.lost or torchapi.is_distributed():
        return verdict
    before = len(oracle.ground.records)
    rounds = Rounds(oracle)
    rounds.run()
    tuned = tuple(rounds.tuned(oracle.taken))
    unusable = sum(len(entry.unusable) for entry in tuned)
    choices = sum(len(entry.choices) for entry in tuned) - unusable
    wrong = [reasons.wrong_choice(entry.kernel, entry.shapes, name) for entry in tuned for name in entry.wrong]
    wrong += [reasons.wrong_round(place) for place in rounds.unnamed]
    runs = (*verdict.runs, *oracle.ground.records[before:])
    seconds = time.perf_counter() - oracle.started
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
        # Rounds that failed, though none of their operations does so alone, or that took the device along.
        self.unnamed: list[int] = []

    def run(self) -> None:
        """Go on until every operation has had each of its choices, or the device is lost; then name what failed."""
        place, failing, right = 0, {}, None
        while place == 0 or place < max((len(offer.choices) for offer in self.offers), default=0):
            found = self.attempt(functools.partial(nth, place), f"choice {place + 1}")
            if found.lost:
                self.blame_round(place, found)
                return
            if found.fails:
                failing[place] = found
            else:
                right = place
            place += 1
        for place, found in failing.items():
            if not self.named(place, right, found):
                return

    def named(self, place: int, right: int | None, failing: CandidateRun) -> bool:
        """Try each operation of a round alone, the others with choices that are right; False: the device is lost."""
        before = sum(map(len, (*self.wrong.values(), *self.unusable.values())))
        for offer in [offer for offer in self.offers if place < len(offer.choices)]:
            pick = functools.partial(by_itself, offer, place, right)
            found = self.attempt(pick, f"choice {place + 1} of {offer.kernel}")
            self.note(offer, place, found)
            if found.lost:
                return False
        if sum(map(len, (*self.wrong.values(), *self.unusable.values()))) == before:
            self.blame_round(place, failing)
        return True

    def blame_round(self, place: int, found: CandidateRun) -> None:
        """Keep a round that fails as a whole."""
        self.unnamed.append(place)
        self.evidence.append(found)

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
                with torchapi.allocating(full_of_nan, factories=False):
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


def nth(place: int, offer: torchapi.Offer) -> int:
    """Pick the choice at a place, or the first one where there are not so many."""
    return place if place < len(offer.choices) else 0


def by_itself(wanted: torchapi.Offer, place: int, right: int | None, offer: torchapi.Offer) -> int | None:
    """Pick one choice of one operation; for the others what is known to be right, or what tuning takes."""
    if offer == wanted:
        return place
    return None if right is None else nth(right, offer)


def full_of_nan(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that allocates as another does, with NaN where nothing was promised: who leaves it shows."""

    @functools.wraps(allocate)
    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = allocate(*args, **kwargs)
        if type(made) is torch.Tensor and (made.is_floating_point() or made.is_complex()) and "out" not in kwargs:
            made.detach().fill_(math.nan)
        return made

    return filled if "empty" in getattr(allocate, "__name__", "") else allocate
