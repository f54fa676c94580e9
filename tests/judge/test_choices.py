"""Kernels that tuning may take: which was taken, and each of them judged; with the C++ kernels of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchparity import Status, UsageError, check, torchapi
from torchparity.compare.expectation import Comparison
from torchparity.compilers.candidates import tunes
from torchparity.judge.appeals import CandidateRun
from torchparity.judge.choices import Rounds, full_of_nan
from torchparity.records import Failure, Kind, LeafReport

TUNED: dict[str, Any] = {
    "mode": "max-autotune",
    "config": {"inductor.freezing": True},
    "no_grad": True,
    "noise_runs": 2,
}


def linear() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 32).eval(), (torch.randn(32, 64),)


def with_kernel(monkeypatch: pytest.MonkeyPatch, compute: Any, *, writes: bool = False) -> None:
    """Let tuning have one more kernel to take for a linear layer; it makes its result, or `writes` it to a buffer."""
    selection = torchapi.lookup("torch._inductor.select_algorithm")
    kernel = selection.ExternKernelChoice(compute, name=f"extra_{compute.__name__}", has_out_variant=writes)
    select = selection.AlgorithmSelectorCache.__call__

    def selected(self: Any, name: str, choices: Any, inputs: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._inductor.select_algorithm import ExternKernelCaller

        extern = next(choice for choice in choices if isinstance(choice, ExternKernelCaller))
        extra = kernel.bind(extern.input_nodes, layout, **extern.kwargs)
        return select(self, name, [*choices, extra], inputs, layout, *args, **kwargs)

    monkeypatch.setattr(selection.AlgorithmSelectorCache, "__call__", selected)


def slow_and_wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
    import time

    time.sleep(0.01)  # Tuning does not take it.
    given = [entry for entry in (*args, *kwargs.values()) if isinstance(entry, torch.Tensor)]
    # What a processor's library has packed for itself stands beside the weight it was made of, or can be unpacked.
    plain = [entry for entry in given[1:] if not entry.is_mkldnn]
    weights = [entry for entry in plain if entry.shape == (32, 64)]
    weight = weights[0] if weights else next(entry for entry in given if entry.is_mkldnn).to_dense()
    bias = next((entry for entry in plain if entry.dim() == 1), None)
    return torch.nn.functional.linear(given[0], weight, bias) * 1.01


@pytest.mark.slow
def test_what_was_taken_stands_in_the_verdict():
    verdict = check(*linear(), fresh_cache=True, **TUNED)

    assert verdict.status is Status.SAME, verdict.reasons
    (tuned,) = verdict.tuned
    assert "32x64" in tuned.shapes
    assert len(tuned.choices) > 1
    assert tuned.taken in tuned.choices


def test_every_choice_is_judged():
    verdict = check(*linear(), every_choice=True, **TUNED)

    assert verdict.status is Status.SAME, verdict.reasons
    (tuned,) = verdict.tuned
    assert (
        verdict.reasons[-1]
        == f"each of the {len(tuned.choices)} kernels that tuning may take for 1 operations is right"
    )
    judged = {run.name.split(", ")[1] for run in verdict.runs if ", choice" in run.name}
    assert judged == {f"choice {place + 1}" for place in range(len(tuned.choices))}


def test_where_nothing_is_tuned_that_is_said():
    verdict = check(torch.sin, (torch.randn(5),), every_choice=True)

    assert verdict.status is Status.SAME
    assert any(reason.startswith("nothing is tuned here") for reason in verdict.reasons)


def test_a_wrong_kernel_that_is_not_taken_is_named(monkeypatch):
    with_kernel(monkeypatch, slow_and_wrong)

    assert check(*linear(), fresh_cache=True, **TUNED).status is Status.SAME
    verdict = check(*linear(), every_choice=True, **TUNED)

    assert verdict.status is Status.DIFFERS
    assert verdict.kind == "value"
    assert any("slow_and_wrong" in reason and reason.endswith("is wrong") for reason in verdict.reasons)
    (tuned,) = verdict.tuned
    assert [name for name in tuned.choices if "slow_and_wrong" in name] == list(tuned.wrong)


def leaves_half(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Write the first half of the rows; in the others stays what was there: a right result, maybe."""
    kept = out[16:].clone()
    out.copy_(slow_and_wrong(*args, **kwargs) / 1.01)
    out[16:] = kept
    return out


def test_a_kernel_that_leaves_part_of_its_result_is_named(monkeypatch):
    with_kernel(monkeypatch, leaves_half, writes=True)
    verdict = check(*linear(), every_choice=True, **TUNED)

    assert verdict.status is Status.DIFFERS
    (tuned,) = verdict.tuned
    assert [name for name in tuned.choices if "leaves_half" in name] == list(tuned.wrong)
    assert any(leaf.kind in (Kind.NONFINITE.value, "value") for leaf in verdict.leaves)


def test_memory_that_nobody_has_written_is_full_of_nan():
    made = full_of_nan(torch.empty)(3, 4)
    assert made.isnan().all()
    assert not full_of_nan(torch.zeros)(3).any()
    assert full_of_nan(torch.empty)(3, dtype=torch.int64).shape == (3,)


def test_other_backends_choose_nothing():
    with pytest.raises(UsageError, match="only inductor chooses"):
        check(torch.sin, (torch.randn(5),), backend="aot_eager", every_choice=True)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"backend": "inductor", "mode": "max-autotune"}, True),
        ({"backend": "inductor", "mode": "max-autotune-no-cudagraphs"}, True),
        ({"backend": "inductor", "mode": "reduce-overhead"}, False),
        ({"backend": "inductor", "mode": None, "config": {"inductor.max_autotune_gemm": "True"}}, True),
        ({"backend": "eager", "mode": "max-autotune"}, False),
    ],
)
def test_who_tunes(facts, expected):
    assert tunes(facts) is expected


@pytest.mark.parametrize("lost", [False, True])
def test_a_round_that_fails_as_a_whole_is_never_called_right(lost, monkeypatch):
    """Nobody fails alone, or the device is lost before anybody can be asked: the verdict says so all the same."""
    offers = [torchapi.Offer("mm", "2x2", ("a", "b")), torchapi.Offer("bmm", "2x2x2", ("a", "b"))]
    failure = Failure(type="a device that is lost", message="", stage="crashes")
    asked: list[tuple[int | None, ...]] = []

    def attempt(self: Rounds, pick: Any, name: str) -> CandidateRun:
        for offer in offers:
            self.offers.setdefault(offer)
        places = tuple(pick(offer) for offer in offers)
        asked.append(places)
        wrong = places == (1, 1)
        reports = {"output": LeafReport(path="output", role="output", status=Status.DIFFERS, dtype="", shape=())}
        told = failure if wrong and lost else None
        return CandidateRun(Comparison(reports if wrong else {}), {}, told, lost=wrong and lost)

    monkeypatch.setattr(Rounds, "attempt", attempt)
    verdict = check(torch.sin, (torch.randn(5),), every_choice=True)

    assert verdict.status is Status.DIFFERS
    assert any("choice 2 of all operations together is wrong" in reason for reason in verdict.reasons)
    # The others have the choice that was right, not what tuning takes.
    assert asked == ([(0, 0), (1, 1)] if lost else [(0, 0), (1, 1), (1, 0), (0, 1)])
