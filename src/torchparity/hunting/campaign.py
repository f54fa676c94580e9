"""A campaign: programs are drawn and judged without end, finds are settled beside it, and all of it is kept."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from torchparity.compilers.written import request_to_json
from torchparity.errors import ResourceError
from torchparity.hunting.inquiry import Inquiry, like
from torchparity.hunting.jobs import BATCH_JOB, ERROR, FIRED, Answer, answer_of, mistaken, request_of
from torchparity.hunting.openings import FILE as OPENINGS
from torchparity.hunting.operators import OPERATORS_JOB
from torchparity.hunting.store import NEW, STUCK, Bug, Find, Store
from torchparity.hunting.templates import PAIR
from torchparity.judge.isolated import phase_of
from torchparity.minifier.programs import PROGRAM_JOB
from torchparity.programs.small import Budget
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool

DRAWN = "drawn"
# Among the facts of a hunt: why PyTorch's operators are not in it, where they are not.
OPERATORS = "operators"
# How fast it is forgotten that a form made something rare fire.
WEARING = 0.3
# How many draws a form counts as for each program in which it only showed a bug once more.
WORN = 10
PROGRAM_SECONDS = 120.0
OPERATORS_SECONDS = 600.0
TICK = 0.5
# How many finds are settled at once: as many as there are workers, up to two, and one for every three of them.
SETTLERS, SHARE = 2, 3
# Programs at once for each worker: most of them wait until their kernels are built, together.
CROWD = 6
# How long a find that is being settled may go on when time is up, in seconds.
AFTERWARDS = 60.0
# The last part of a hunt, in which finds go first that look like bugs which are settled; they wait until then.
LAST = 0.2
# After so many programs that the checker itself could not judge a hunt ends: a full disk does not get better by it.
MISTAKES = 40


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a campaign goes on, from which seed, with how many workers, compiled how.

    A worker has a `crowd` of programs at once, whose kernels are built together by whoever is at the desk `builder`. So
    large a share of the programs begins with one of the openings in the campaign's folder, once they are there;
    `operators` makes them of PyTorch's database. `special` puts Inf, NaN, -0.0 and extremes into inputs.
    """

    minutes: float = 10.0
    programs: int | None = None
    seed: int = 0
    workers: int = 2
    crowd: int = CROWD
    builder: str = ""
    batch: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    share: float = 0.0
    operators: bool = False
    special: bool = False


def settlers(workers: int) -> int:
    """Return how many finds are settled at once."""
    return max(min(SETTLERS, workers), workers // SHARE)


def places(workers: int) -> int:
    """Return how many processes a campaign's pool needs: for the crowds, for questions about finds, for one more."""
    return workers * CROWD + settlers(workers) * Budget().together + 1


def worn(finds: Iterable[Find], bugs: Sequence[Bug] = ()) -> Counter[str]:
    """Return what the forms in programs that showed a bug once more count as having been drawn: they hide others.

    A find that nobody has looked into yet is one more of the bug that it looks like.
    """
    seen: set[str] = set()
    counted: Counter[str] = Counter()
    for find in finds:
        again = find.bug in seen or (find.state == NEW and like(bugs, find))
        if again:
            features = {name for name in find.answer.get("features", ()) if not name.startswith((FIRED, PAIR))}
            counted.update(dict.fromkeys(features, WORN))
        elif find.bug:
            seen.add(find.bug)
    return counted


class Campaign:
    """Draws programs with most workers; the others settle finds while there are any."""

    def __init__(
        self, store: Store, pool: Pool, inquiry: Inquiry, plan: Plan, hear: Callable[[Store], None] | None = None
    ) -> None:
        self.store, self.pool, self.inquiry, self.plan, self.hear = store, pool, inquiry, plan, hear
        self.drawn = store.folder / DRAWN
        self.drawn.mkdir(exist_ok=True)
        self.deadline = time.monotonic() + plan.minutes * 60
        self.last_part = self.deadline - LAST * plan.minutes * 60
        self.drawing_done, self.over = threading.Event(), threading.Event()
        # How many finds are settled at once, and which of them somebody has taken.
        self.settling = settlers(plan.workers)
        self._taken: set[int] = set()
        self._choosing = threading.Lock()
        self.counts = store.features()
        self.liked: dict[str, float] = {}
        first = int(store.fact("seed", str(plan.seed)))
        self._left = store.missing_seeds(first)
        self._next = store.next_seed(first)
        self._asked = 0
        self.mistakes, self.mistake = 0, ""
        store.set_fact("seed", str(first))

    # --- the whole -------------------------------------------------------------------------------

    def run(self) -> None:
        """Go on until time is up, or as many programs as were asked for are judged; then settle what is left."""
        settling = [
            threading.Thread(target=self._settle_finds, name=f"torchparity-settler-{number}", daemon=True)
            for number in range(self.settling)
        ]
        for settler in settling:
            settler.start()
        running: dict[Future[Outcome], list[int]] = {}
        reading = self._read_operators()
        try:
            while running or self._goes_on():
                while self._goes_on() and len(running) < self._hunters():
                    seeds = self._seeds()
                    running[self._submit(seeds)] = seeds
                if not running:
                    self.over.wait(TICK)  # Finds have all there is.
                done, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(running.pop(future), future.result())
                self._tell()
                self._see_that_it_works()
            self.drawing_done.set()
            while any(settler.is_alive() for settler in settling) and not self._late(AFTERWARDS):
                self.over.wait(TICK)
                self._tell()
        finally:
            self.over.set()
            if reading is not None and not reading.cancel() and reading.done():
                self._note_operators(reading.result())
            shutil.rmtree(self.drawn, ignore_errors=True)

    def _see_that_it_works(self) -> None:
        """End a hunt that comes to nothing, again and again."""
        if self.mistakes >= MISTAKES:
            raise ResourceError(
                f"{self.mistakes} programs one after the other could not be judged: {self.mistake}",
                hint=f"what was found is kept: `torchparity hunt --resume {self.store.folder}` goes on",
            )

    def _read_operators(self) -> Future[Outcome] | None:
        """Let a worker write the openings of PyTorch's operators, while the others draw without them."""
        if not self.plan.operators or (self.store.folder / OPENINGS).is_file():
            return None
        payload = {"folder": str(self.store.folder.resolve())}
        return self.pool.submit(OPERATORS_JOB, payload, limits=Limits(seconds=OPERATORS_SECONDS))

    def _note_operators(self, outcome: Outcome) -> None:
        """Note that the operators could not be read, and why; or that nothing is wrong with them."""
        told = "" if outcome.ending is Ending.RETURNED else f"PyTorch's operators were not read: {outcome.ending.value}"
        self.store.set_fact(OPERATORS, f"{told} {outcome.error.message[:200]}" if told and outcome.error else told)

    def _tell(self) -> None:
        if self.hear is not None:
            self.hear(self.store)

    def _late(self, grace: float = 0.0) -> bool:
        """Whether time is up. Where a number of programs was asked for, their finds take as long as they take."""
        return self.plan.programs is None and time.monotonic() > self.deadline + grace

    def _goes_on(self) -> bool:
        asked = self.plan.programs is not None and self._asked >= self.plan.programs
        return not asked and time.monotonic() < self.deadline

    def _hunters(self) -> int:
        """How many batches there are at once: a crowd for each worker that settles no finds."""
        busy = min(self.settling, len(self.inquiry.waiting(new=not self._finds_first())))
        least = 0 if self._finds_first() else 1
        return self.plan.crowd * max(least, self.plan.workers - busy)

    def _finds_first(self) -> bool:
        """Whether it is time for the finds that look like bugs which are settled."""
        return self.drawing_done.is_set() or time.monotonic() > self.last_part

    # --- programs --------------------------------------------------------------------------------

    def _seeds(self) -> list[int]:
        count = self.plan.batch
        if self.plan.programs is not None:
            count = min(count, self.plan.programs - self._asked)
        chosen, self._left = self._left[:count], self._left[count:]
        fresh = count - len(chosen)
        chosen += range(self._next, self._next + fresh)
        self._next += fresh
        self._asked += len(chosen)
        return chosen

    def _submit(self, seeds: list[int]) -> Future[Outcome]:
        counts = self.counts + worn(self.store.finds(), self.store.bugs())
        payload = {
            "seeds": seeds, "folder": str(self.drawn.resolve()), "counts": dict(counts),
            "liked": dict(self.liked),
            "options": dict(self.plan.options), "openings": str((self.store.folder / OPENINGS).resolve()),
            "share": self.plan.share, "special": self.plan.special, "builder": self.plan.builder,
        }  # fmt: skip
        return self.pool.submit(BATCH_JOB, payload, limits=Limits(seconds=PROGRAM_SECONDS * len(seeds)))

    def _take(self, seeds: list[int], outcome: Outcome) -> None:
        """Keep what was answered; ask again, alone, about the one at which a worker died."""
        for seed in seeds:
            place = self.drawn / f"{seed}.json"
            if place.is_file():
                self._keep(seed, json.loads(place.read_text(encoding="utf-8")))
        if outcome.ending is Ending.RETURNED:
            return
        told = phase_of(outcome.phase)
        at = int(told.name) if told is not None else None
        if at in seeds:
            self._keep(at, self._alone(at, outcome))
            rest = seeds[seeds.index(at) + 1 :]
            self._left += rest
            self._asked -= len(rest)

    def _alone(self, seed: int, outcome: Outcome) -> Answer:
        """Judge again, in a process of its own, what a worker died of."""
        place = self.drawn / f"{seed}.py"
        facts: Answer = {"seed": seed, "options": dict(self.plan.options)}
        with contextlib.suppress(OSError, ValueError):
            facts |= json.loads(place.with_suffix(".facts").read_text(encoding="utf-8"))
        if not place.is_file():
            return {**mistaken(f"the process {outcome.ending.value} while it drew"), **facts}
        payload = {"file": str(place), "request": request_to_json(request_of(facts["options"]))}
        answer = answer_of(self.pool.submit(PROGRAM_JOB, payload, limits=Limits(seconds=PROGRAM_SECONDS)).result())
        return {**answer, **facts}

    def _keep(self, seed: int, answer: Answer) -> None:
        self.mistakes = self.mistakes + 1 if answer["status"] == ERROR else 0
        self.mistake = next(iter(answer.get("reasons", ())), self.mistake)
        place = self.drawn / f"{seed}.py"
        text = place.read_text(encoding="utf-8") if place.is_file() else ""
        if self.store.add(seed, answer, text, time.time()):
            features = list(answer.get("features", ()))
            self.counts.update(features)
            self._like(features)
        for suffix in (".json", ".facts", ".py"):
            with contextlib.suppress(OSError):
                place.with_suffix(suffix).unlink()

    def _like(self, features: Sequence[str]) -> None:
        """Want more of the forms in a program that has moved rare counters of the compiler; it wears off."""
        worth = sum(1.0 / self.counts[name] for name in features if name.startswith(FIRED))
        for name in features:
            if not name.startswith((FIRED, PAIR)):
                self.liked[name] = (1 - WEARING) * self.liked.get(name, 0.0) + WEARING * worth

    # --- finds -----------------------------------------------------------------------------------

    def _settle_finds(self) -> None:
        while not self.over.is_set() and not self._late():
            with self._choosing:
                find = self.inquiry.next_find(self._taken, new=not self._finds_first())
                self._taken |= {find.seed} if find is not None else set()
            if find is not None:
                self._settle(find)
            elif self.drawing_done.wait(TICK):
                return

    def _settle(self, find: Find) -> None:
        """Settle a find; whatever goes wrong with one of them is noted, and the others have their turn."""
        try:
            self.inquiry.settle(find)
        except Exception as error:  # noqa: BLE001 - a find is never lost, and never in the way of another
            if not self.over.is_set():
                self.store.settle(find.seed, STUCK, note=f"{type(error).__name__}: {error}"[:500])
