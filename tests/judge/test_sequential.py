"""When a leaf is called clear after few noise runs: what many would call wrong must not be among them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from torchparity import Status, check
from torchparity.compare.expectation import Comparison, Expectation
from torchparity.compare.judgement import THRESHOLD, Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.judge.appeals import Appeals, CandidateRun, is_clear
from torchparity.judge.ground import LOOKS

TRIALS = 400
SUMS = 200
FEWER = 100
# Each look, and how many noise runs there are by then.
LOOKED = [
    pytest.param(look, runs, marks=[] if runs in (1, 3) else pytest.mark.slow)
    for look, runs in enumerate((1, *(int(runs) for runs in LOOKS[:-1])))
]
# So many runs tell how large the noise is for good.
MANY = 60


def leaf(values: torch.Tensor) -> Leaf:
    return Leaf(path="output", role="output", value=values)


class Model:
    """A leaf whose noise is known: normal, of one size."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.truth = torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def run(self) -> torch.Tensor:
        noise = torch.randn(self.truth.shape, generator=self.generator, dtype=torch.float64)
        return (self.truth + 1e-4 * noise).float()

    def expectation(self, runs: int) -> Expectation:
        found = Expectation(leaf(self.run()), {"": self.truth})
        for _ in range(runs):
            found.add(leaf(self.run()))
        return found


@pytest.mark.parametrize(("look", "runs"), LOOKED)
@pytest.mark.parametrize("shape", [(40, 40), (300,), (7,), (1,)])
def test_what_many_runs_call_wrong_is_not_clear_after_few(look, runs, shape):
    tolerance = Tolerance()
    model = Model(shape, seed=len(shape) + runs)
    unit = model.expectation(MANY).parts[""].allowance(slice(None), slice(None)).reshape(shape)
    missed = 0
    for trial in range(TRIALS if look in (0, 2) else FEWER):
        wrong = model.run()
        place = trial % wrong.numel()
        wrong.reshape(-1)[place] = float(model.truth.reshape(-1)[place] + 1.5 * THRESHOLD * unit.reshape(-1)[place])
        missed += is_clear(model.expectation(runs).judge(leaf(wrong), tolerance), tolerance, look)
    assert missed == 0


@pytest.mark.parametrize(("look", "runs"), [(0, 1), (1, 3)])
@pytest.mark.parametrize(("name", "shape"), [("row mean", (300, 20)), ("column mean", (20, 300)), ("mean", (300, 20))])
def test_a_sum_that_many_runs_call_wrong_is_not_clear_after_few(look, runs, name, shape):
    tolerance, size = Tolerance(), 300
    model = Model(shape, seed=runs)
    unit = model.expectation(MANY).parts[""].aggregate_units()[name]
    missed = 0
    for trial in range(SUMS if look in (0, 2) else FEWER):
        wrong = model.run()
        part = wrong if name == "mean" else wrong.select(wrong.shape.index(size), trial % size)
        part += 1.5 * THRESHOLD * float(unit[trial % unit.numel()]) / part.numel()
        missed += is_clear(model.expectation(runs).judge(leaf(wrong), tolerance, spread=False), tolerance, look)
    assert missed == 0


def test_a_large_clean_leaf_is_clear_after_three_runs_though_it_has_many_sums():
    tolerance = Tolerance()
    model = Model((1024, 512), seed=5)
    judged = [model.expectation(3).judge(leaf(model.run()), tolerance) for _ in range(10)]
    assert all(report.aggregate_score > 0.3 * THRESHOLD for report in judged)  # Of many sums one is always far out.
    assert sum(is_clear(report, tolerance, 2) for report in judged) >= 9


def test_a_clean_leaf_is_clear_after_three_runs_nearly_always():
    tolerance = Tolerance()
    model = Model((64, 64), seed=5)
    judged = [model.expectation(3).judge(leaf(model.run()), tolerance) for _ in range(100)]
    assert sum(is_clear(report, tolerance, 2) for report in judged) >= 90
    assert sum(is_clear(report, tolerance, 0) for report in judged) < 50  # The first look asks for more.


def test_what_is_clear_after_three_runs_gets_no_more():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))

    def rounded_otherwise(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        return lambda *args: tuple(
            value * (1 + 1.5 * torch.finfo(torch.float32).eps) if value.is_floating_point() else value
            for value in graph(*args)
        )

    verdict = check(model, (torch.randn(64, 64),), backend=rounded_otherwise)
    names = [run.name for run in verdict.runs]
    assert verdict.status.value == "same"
    assert "noise 1" in names
    assert "noise 6" not in names


def test_a_leaf_that_differs_only_at_a_closer_look_has_its_errors_counted():
    """Runs after the first count errors only where they differ; the look that finds so must not lose them."""
    model = Model((40, 40), seed=0)
    wrong = model.run()
    wrong[0, 0] += 1
    found = model.expectation(3)
    before = found.judge(leaf(model.run()), Tolerance(), spread=False)
    entry = CandidateRun(Comparison({"output": before}), {"output": leaf(wrong)})
    ground = SimpleNamespace(
        settings=None, expectations={"output": found}, look_closer=lambda paths, look: bool(paths) and look == 0
    )

    Appeals(ground, Tolerance(), None, None).look_closer([entry])

    report = entry.comparison.reports["output"]
    assert before.histogram is None
    assert report.status is Status.DIFFERS
    assert report.histogram is not None
