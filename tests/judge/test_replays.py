"""Where a device records and replays, the third run is another thing than the first two; the device is faked here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from torchparity import Status, check
from torchparity.compilers.candidates import replays
from torchparity.judge import oracle


@pytest.fixture(autouse=True)
def recording(monkeypatch):
    monkeypatch.setattr(oracle, "REPLAYING_DEVICES", ("cpu",))
    monkeypatch.setattr(oracle, "replays", lambda facts: True)


def wrong_from(first: int) -> Any:
    """Return a backend whose code is wrong from some call on."""

    def backend(graph_module: Any, inputs: list[Any]) -> Any:
        calls = itertools.count(1)
        return lambda *args: tuple(
            one * (1.5 if number >= first else 1.0)
            for number in [next(calls)]
            for one in graph_module(*args)
        )  # fmt: skip

    return backend


def test_what_is_wrong_only_in_a_replay_is_found_and_said():
    verdict = check(torch.sin, (torch.randn(5),), backend=wrong_from(3))

    assert verdict.status is Status.DIFFERS
    assert verdict.differs_in == (oracle.REPLAYS, oracle.RECORDED + oracle.REPLAYS)
    assert any("only when it is replayed" in reason for reason in verdict.reasons)


def test_what_is_wrong_sooner_or_later_is_not_deterministic():
    verdict = check(torch.sin, (torch.randn(5),), backend=wrong_from(4))

    assert verdict.status is Status.DIFFERS
    assert any("not deterministic" in reason for reason in verdict.reasons)


def test_what_is_right_is_run_as_often():
    verdict = check(torch.sin, (torch.randn(5),), backend=wrong_from(99))

    assert verdict.status is Status.SAME
    assert sum(run.name.startswith("backend") for run in verdict.runs) == oracle.RECORDED + oracle.REPLAYS


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"mode": "reduce-overhead"}, True),
        ({"mode": "max-autotune"}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, False),
        ({"mode": None, "config": {"inductor.triton.cudagraphs": "True"}}, True),
        ({"mode": None, "options": {"triton.cudagraphs": "False"}}, False),
        ({"backend": "cudagraphs"}, True),
        ({"backend": "inductor", "options": None}, False),
    ],
)
def test_who_records(facts, expected):
    assert replays(facts) is expected
