"""What a run leaves behind in Python is state like a buffer: put back before each run, compared after it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from torchparity import check
from torchparity.compilers.candidates import Given
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import Settings
from torchparity.records import Status
from torchparity.run.plan import Plan
from torchparity.run.subject import Subject

calls = 0
trace: list[float] = []
table: dict[str, Any] = {"calls": 0}


def count_globally(x: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    return x + calls


def note_globally(x: torch.Tensor) -> torch.Tensor:
    trace.append(1.0)
    table["calls"] += 1
    return x * len(trace)


def closure() -> Callable[[torch.Tensor], torch.Tensor]:
    held: list[int] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        held.append(len(held))
        return x + len(held)

    return run


def enclosed() -> Callable[[torch.Tensor], torch.Tensor]:
    count = 0

    def run(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return x + count

    return run


def remembering(x: torch.Tensor, seen: list[int] = [], *, table: dict[str, int] = {}) -> torch.Tensor:  # noqa: B006
    seen.append(len(seen))
    table["calls"] = table.get("calls", 0) + 1
    return x * len(seen) + table["calls"]


class Remembering(torch.nn.Module):
    def forward(self, x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(len(seen))
        return x * len(seen)


@dataclass
class Counter:
    count: int = 0
    seen: list[int] = field(default_factory=list)


class Keeping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()
        self._private = 0
        self.queue: deque[int] = deque(maxlen=4)
        self.kinds: set[str] = set()
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter.count += 1
        self.counter.seen.append(self.counter.count)
        self._private += 2
        self.kinds.add("seen")
        self.cache["last"] = x.sin()
        return x.cos()


MODELS: dict[str, Callable[[], Any]] = {
    "a global": lambda: count_globally,
    "global containers": lambda: note_globally,
    "a list of a closure": closure,
    "a variable of a closure": enclosed,
    "attributes": Keeping,
    "defaults of a function": lambda: remembering,
    "defaults of a module": Remembering,
}


@pytest.mark.parametrize("name", list(MODELS))
def test_state_is_put_back_and_what_is_kept_agrees(name: str) -> None:
    before = (calls, list(trace), dict(table))

    verdict = check(MODELS[name](), (torch.randn(3),), backend="aot_eager")

    assert verdict.status is Status.SAME, [leaf.mismatches for leaf in verdict.leaves if leaf.mismatches]
    assert (calls, list(trace), dict(table)) == before


def differing(model: Any, change: Callable[[], None]) -> list[str]:
    """Check a model whose compiled form changes state once more; return the leaves that differ."""

    def compiled(x: torch.Tensor) -> Any:
        result = model(x)
        change()
        return result

    verdict = Oracle(Subject(model, (torch.randn(3),)), Plan(), Given(compiled), Settings()).judge()
    return [leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS]


def test_a_change_that_is_lost_or_made_twice_differs() -> None:
    def lose_global() -> None:
        global calls
        calls = 0

    assert differing(count_globally, lose_global) == ["attribute.calls"]
    assert set(differing(note_globally, trace.clear)) == {"attribute.trace[0]"}
    assert differing(note_globally, lambda: table.update(calls=7)) == ["attribute.table.calls"]

    run = closure()
    held = run.__closure__[0].cell_contents  # type: ignore[attr-defined]
    assert differing(run, held.clear) == ["attribute.held[0]"]

    (seen,) = remembering.__defaults__ or ()
    assert differing(remembering, seen.clear) == ["attribute.remembering(seen)[0]"]
    assert differing(remembering, lambda: seen.append(4)) == ["attribute.remembering(seen)[1]"]

    model = Keeping()
    assert differing(model, lambda: setattr(model, "_private", 0)) == ["attribute._private"]
    assert differing(model, lambda: model.counter.seen.append(5)) == ["attribute.counter.seen[1]"]
    assert differing(model, lambda: model.kinds.clear()) == ["attribute.kinds"]
    assert differing(model, lambda: model.cache.clear()) == ["attribute.cache.last"]
    assert differing(model, lambda: model.queue.append(3)) == ["attribute.queue[0]"]


def test_state_that_eager_does_not_repeat_holds_nobody() -> None:
    class Timed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.at = time.time()
            self.word = f"at {time.time()}"
            return x.sin()

    verdict = check(Timed(), (torch.randn(3),), backend="aot_eager", allow_eager=True)

    assert verdict.status is Status.SAME, verdict.reasons
