"""Where a device records and replays, the third run is another thing than the first two; the device is faked here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from torchparity import Status, check
from torchparity.compilers.candidates import replays
from torchparity.judge import appeals, memory, oracle
from torchparity.run.other_data import has_order


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
    on_other_data = 2
    assert (
        sum(run.name.startswith("backend") for run in verdict.runs) == oracle.RECORDED + oracle.REPLAYS + on_other_data
    )


def recorded(*, inputs_by: str, parameters_by: str) -> Any:
    """Return a backend that records what it is given at its second call, by value or by address, and replays that."""

    def backend(graph_module: Any, inputs: list[Any]) -> Any:
        calls = itertools.count(1)
        kept: dict[int, Any] = {}

        def run(*args: Any) -> Any:
            if next(calls) == oracle.RECORDED:
                for place, value in enumerate(args):
                    by = parameters_by if isinstance(value, torch.nn.Parameter) else inputs_by
                    kept[place] = (
                        value.detach().clone().requires_grad_(value.requires_grad)
                        if by == "value"
                        else value
                        if by == "address"
                        else None
                    )
            return graph_module(
                *(value if kept.get(place) is None else kept[place] for place, value in enumerate(args))
            )

        return run

    return backend


@pytest.mark.parametrize("stale", ["inputs_by", "parameters_by"])
def test_what_was_recorded_by_value_is_found_on_other_data(stale):
    how = {"inputs_by": "nothing", "parameters_by": "nothing", stale: "value"}
    model = torch.nn.Linear(5, 3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    verdict = check(model, (torch.randn(2, 5),), backend=recorded(**how))

    assert verdict.status is Status.DIFFERS
    assert verdict.reasons[0].startswith("replayed with other inputs and updated parameters")
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_what_was_recorded_by_an_inputs_address_is_found():
    verdict = check(
        torch.nn.Linear(5, 3), (torch.randn(2, 5),), backend=recorded(inputs_by="address", parameters_by="nothing")
    )
    assert verdict.status is Status.DIFFERS


def test_parameters_stay_where_they_are():
    verdict = check(
        torch.nn.Linear(5, 3), (torch.randn(2, 5),), backend=recorded(inputs_by="nothing", parameters_by="address")
    )
    assert verdict.status is Status.SAME, verdict.reasons


def test_masks_and_infinities_stay_what_they_are():
    mask = torch.full((4, 4), float("-inf")).triu(1)
    verdict = check(lambda x, mask: torch.softmax(x + mask, -1), (torch.randn(4, 4), mask), backend="aot_eager")
    assert verdict.status is Status.SAME, verdict.reasons


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


def giving_out_again(graph_module: Any, inputs: list[Any]) -> Any:
    """Compile to code that writes to the same memory at every call, as a graph that is replayed does."""
    buffers: dict[int, torch.Tensor] = {}
    calls = itertools.count(1)

    def run(*args: Any) -> Any:
        number = next(calls)
        with torch.no_grad():
            return tuple(
                buffers.setdefault(place, torch.empty_like(result)).copy_(result * (1 if number == 1 else 1 + 3e-7))
                for place, result in enumerate(graph_module(*args))
            )

    return run


def test_what_is_judged_again_is_what_was_returned_not_what_lies_there_now():
    """Leaves that come out close are judged once more, when later runs have written to their memory."""
    seen: list[float] = []
    look_closer = oracle.Appeals.look_closer

    def listening(self: Any, candidates: Any) -> None:
        seen.extend(float(entry.suspects["output"].value[0]) for entry in candidates if "output" in entry.suspects)
        look_closer(self, candidates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle.Appeals, "look_closer", listening)
        patch.setattr(appeals, "CLEAR_BELOW", ((-1.0, -1.0),) * 5)
        check(torch.sin, (torch.full((5,), 1.0),), backend=giving_out_again, noise_runs=2)

    assert len(set(seen)) > 1


@pytest.mark.parametrize(("backend", "expected"), [("inductor", Status.SAME), ("other", Status.DIFFERS)])
def test_torchs_own_graphs_may_write_to_the_same_memory(backend, expected, monkeypatch):
    monkeypatch.setattr(memory, "REUSING", ("giving_out_again",) if backend == "inductor" else ())
    verdict = check(torch.sin, (torch.full((5,), 1.0),), backend=giving_out_again)
    assert verdict.status is expected, verdict.reasons


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.arange(5.0), True),
        (-torch.arange(5.0), True),
        (torch.eye(4) + 1, True),
        (torch.tensor([1.0, 3.0, 2.0]), False),
        (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), False),
        (torch.tensor(2.0), False),
    ],
)
def test_what_has_an_order_keeps_it(values, expected):
    assert has_order(values) is expected


def test_a_model_that_cannot_run_on_other_data_keeps_its_verdict():
    def strict(x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) < 9.5:
            raise ValueError("not such numbers")
        return x.sin()

    verdict = check(strict, (torch.full((2, 5), 1.0) + torch.eye(5)[:2] * 1e-3,), backend="eager")
    assert verdict.status is Status.SAME, verdict.reasons
