"""Ranks that check together: who they are, what they tell each other, and how they end as one.

They talk through a store that is apart from the model's own process group, so that a question can be asked, and given
up, while a collective hangs. Every answer is numbered: a rank that is at another question than the others is found.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, Protocol

from torchparity import errors, torchapi
from torchparity.errors import ResourceError, UsageError
from torchparity.records import (
    APART,
    DIFFERS_CODE,
    FAILED,
    LATE,
    SILENT,
    UNKNOWN_CODE,
    Loss,
    Standing,
)

# After one rank has failed, the others may still be on their way; a rank that waits for it in a collective is not.
GRACE = 10.0
# The rank that serves the store may still be importing torch.
CONNECT = 60.0
POLL = 0.01
SLOWEST_POLL = 0.1


class Store(Protocol):
    """What the ranks need of torch's store."""

    def set(self, key: str, value: str) -> None:
        """Keep a value."""

    def get(self, key: str) -> bytes:
        """Return a value, waiting for it."""

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are there, without waiting."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Keep a value where there is none yet."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank of how many this process is, and where the ranks' store is found."""

    rank: int
    world: int
    host: str
    port: int
    agent: bool
    launch: str


def place_of(environment: Mapping[str, str]) -> Place | None:
    """Return the place that a launcher has put into the environment; None where this process is alone."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environment):
        return None
    try:
        rank, world, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {error}",
            hint="start with torchrun, which sets them, or unset RANK to check alone",
        ) from error
    if world < 2:
        return None
    # A restarted launch meets the keys of the one before in the same store.
    launch = f"{environment.get('TORCHELASTIC_RUN_ID', '')}.{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return Place(
        rank=rank,
        world=world,
        host=environment["MASTER_ADDR"],
        port=port,
        agent=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        launch=launch,
    )


def open_store(place: Place) -> Store:
    """Return a connection to the store: torchrun's agent serves it, or rank 0 does."""
    serves = place.rank == 0 and not place.agent
    try:
        store: Store = torchapi.open_store(
            place.host, place.port, serve=serves, seconds=CONNECT, prefix=f"torchparity.{place.launch}"
        )
    except (RuntimeError, ValueError) as error:
        raise ResourceError(
            f"rank {place.rank} cannot reach the store at {place.host}:{place.port}",
            hint="MASTER_ADDR and MASTER_PORT must name the machine that torchrun runs on",
        ) from error
    return store


class Ranks:
    """The ranks as one of them sees the others: it asks, waits no longer than agreed, and ends with them."""

    def __init__(self, place: Place, *, seconds: float, limit: float, same_graphs: bool = True) -> None:
        self.place = place
        self.same_graphs = same_graphs
        self.seconds = seconds
        self.limit = limit
        self.store = open_store(place)
        self.asked = 0
        self._phase = ("start", time.monotonic(), False)
        self._failure, self._differs = "", False
        self.allowed = seconds

    @property
    def rank(self) -> int:
        """Which one this is."""
        return self.place.rank

    @property
    def world(self) -> int:
        """How many there are."""
        return self.place.world

    # --- what this rank is doing ------------------------------------------------------------------

    def begin(self, phase: str, *, at_least: float = 0.0) -> None:
        """Say what this rank does from now on, and, where that is not a run, how long it may take at least."""
        self._phase = (phase, time.monotonic(), False)
        self.allowed = max(self.seconds, at_least)
        with contextlib.suppress(RuntimeError):  # The store is gone: the watch finds the same, and ends this process.
            self.store.set(f"phase/{self.rank}", json.dumps({"phase": phase}))  # It may die before its next beat.

    def standing(self) -> dict[str, Any]:
        """Return what this rank does, since how many seconds, and whether it waits for others there, having failed."""
        phase, since, waits = self._phase
        told = {"phase": phase, "seconds": time.monotonic() - since, "allowed": self.allowed, "waits": waits}
        return {**told, "failure": self._failure, "differs": self._differs}

    # --- questions --------------------------------------------------------------------------------

    def gather(self, question: str, answer: Any, *, failure: str = "", differs: bool = False) -> list[Any]:
        """Return every rank's answer to a question that all of them are asked, in the order of ranks.

        `failure` says that this rank could not go on; the others may then be waiting for it where it will not come,
        and get little time. `differs` says that this alone decides the verdict.
        """
        self.asked += 1
        number, phase = self.asked, self._phase
        told = {"question": question, "answer": answer, "failure": failure, "differs": differs}
        self._phase, self._failure, self._differs = (phase[0], time.monotonic(), True), failure, differs
        try:
            self.store.set(f"answer/{number}/{self.rank}", json.dumps(told))
            heard = self._wait(number)
        except RuntimeError:  # The store is gone. The watch finds the same, and ends this process.
            time.sleep(self.seconds)
            raise
        if len({entry["question"] for entry in heard.values()}) > 1:
            self._part(heard)
        self._phase, self._failure, self._differs = (phase[0], time.monotonic(), False), "", False
        return [heard[rank]["answer"] for rank in range(self.world)]

    def most(self, question: str, number: int) -> int:
        """Return the largest of all ranks' answers: what one must do, all do."""
        numbers: list[int] = self.gather(question, number)
        return max(numbers)

    def _wait(self, number: int) -> dict[int, dict[str, Any]]:
        """Hear every rank's answer; where one does not come in time, end all."""
        heard: dict[int, dict[str, Any]] = {}
        since, pause = time.monotonic(), POLL
        allowed, beats = self.allowed, self._beats()
        while len(heard) < self.world:
            for rank in set(range(self.world)) - set(heard):
                key = f"answer/{number}/{rank}"
                if self.store.check([key]):
                    heard[rank] = json.loads(self.store.get(key))
                    if heard[rank]["failure"]:
                        since, allowed, beats = time.monotonic(), min(GRACE, self.allowed), self._beats()
            if len(heard) == self.world:
                break
            if time.monotonic() - since > allowed:
                self._give_up(heard, beats)
            time.sleep(pause)
            pause = min(pause * 1.5, SLOWEST_POLL)
        return heard

    def together(self, question: str, action: Callable[[], Any]) -> list[Any]:
        """Do something on every rank and return what all of them got; what is raised on one of them, all raise."""
        told: dict[str, Any]
        try:
            told, failure = {"result": action()}, ""
        except errors.ParityError as error:
            told = {"error": error.to_data()}
            failure = error.message
        answers = self.gather(question, told, failure=failure)
        raised = {rank: answer["error"] for rank, answer in enumerate(answers) if "error" in answer}
        if not raised:
            return [answer["result"] for answer in answers]
        first = min(raised)
        message = raised[first]["message"]
        alike = len(raised) == self.world and len({entry["message"] for entry in raised.values()}) == 1
        raise errors.error_from(raised[first] if alike else {**raised[first], "message": f"rank {first}: {message}"})

    def _beats(self) -> list[int]:
        return [int((read(self.store, f"beat/{rank}") or {}).get("count", 0)) for rank in range(self.world)]

    def _give_up(self, heard: Mapping[int, Mapping[str, Any]], beats: list[int]) -> None:
        """End ranks some of which do not come: because they are gone, because others have failed, or too slow."""
        missing = [rank for rank in range(self.world) if rank not in heard]
        now = self._beats()
        silent = {rank: (SILENT, "") for rank in missing if now[rank] == beats[rank]}
        if silent:
            self.end(SILENT, silent)  # Where a rank is gone, what the others raise is no wonder.
        failed = {rank: (FAILED, entry["failure"]) for rank, entry in heard.items() if entry["failure"]}
        if not failed:
            self.end(LATE, dict.fromkeys(missing, (LATE, "")))
        differs = any(entry["differs"] for entry in heard.values())
        self.end(FAILED, failed, code=DIFFERS_CODE if differs else UNKNOWN_CODE)

    def _part(self, heard: Mapping[int, Mapping[str, Any]]) -> None:
        """End ranks that are at different places of the check: what each is asked says where."""
        failed = {rank: (FAILED, entry["failure"]) for rank, entry in heard.items() if entry["failure"]}
        apart = {rank: (APART, entry["question"]) for rank, entry in heard.items()}
        differs = any(entry["differs"] for entry in heard.values())
        self.end(FAILED if failed else APART, failed or apart, code=DIFFERS_CODE if differs else UNKNOWN_CODE)

    # --- the end ----------------------------------------------------------------------------------

    def end(self, kind: str, trouble: Mapping[int, tuple[str, str]], *, code: int = UNKNOWN_CODE) -> NoReturn:
        """Say why all ranks must end, unless another has said so before; wait for the watch to end this process."""
        self.declare(self.store, kind, trouble, code=code)
        while True:
            time.sleep(SLOWEST_POLL)

    def declare(
        self, store: Store, kind: str, trouble: Mapping[int, tuple[str, str]], *, code: int = UNKNOWN_CODE
    ) -> None:
        """Write down why all ranks must end: the first that does so is believed."""
        standings = []
        for rank in range(self.world):
            beat = read(store, f"beat/{rank}") or {}
            begun = read(store, f"phase/{rank}") or {}
            if begun and begun["phase"] != beat.get("phase"):  # The beat is from before that.
                beat = {**beat, **begun, "seconds": 0.0, "line": "", "waits": False}
            what, detail = trouble.get(rank, ("", ""))
            if kind == LATE and beat.get("failure"):  # Then it is no wonder that others are late.
                what, detail = FAILED, str(beat["failure"])
                code = DIFFERS_CODE if beat["differs"] else code
            standings.append(
                Standing(
                    rank=rank,
                    phase=str(beat.get("phase", "")),
                    seconds=float(beat.get("seconds", 0.0)),
                    line=str(beat.get("line", "")),
                    waits=bool(beat.get("waits", False)),
                    trouble=what,
                    detail=detail,
                )
            )
        loss = Loss(kind=kind, code=code, limit=self.allowed, standings=tuple(standings))
        store.compare_set("end", "", json.dumps(asdict(loss)))

    def say(self, key: str) -> None:
        """Leave a mark for the others."""
        self.store.set(key, "1")


def read(store: Store, key: str) -> dict[str, Any] | None:
    """Return what is kept under a key, or None; never wait for it."""
    if not store.check([key]):
        return None
    found: dict[str, Any] = json.loads(store.get(key))
    return found


def leave(code: int) -> NoReturn:
    """End this process with a code, at once: a group whose peers are gone may never let go of it."""
    os._exit(code)
