"""Leaves at which right runs are called wrong: nobody is accused there, and real faults are seen beside them."""

import pytest
import torch
from torch import nn

from torchparity import Status, check
from torchparity.compare.expectation import Expectation
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.judge.innocents import FARTHER, FEWEST_RIGHT, FEWEST_WHERE_FAR, MOST_RIGHT, Innocents
from torchparity.records import Kind, LeafReport, Mismatch

SHAPE = (4, 8)


def two_numbers_a_channel(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Batch norm over two numbers, in bfloat16: where they are nearly equal, its gradient is a narrow peak."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Conv2d(40, 320, 1, bias=False), nn.BatchNorm2d(320, eps=1e-3), nn.ReLU6()]
        layers += [nn.Conv2d(320, 40, 1, bias=False), nn.BatchNorm2d(40, eps=1e-3)]
    layers += [nn.Conv2d(40, 640, 1, bias=False), nn.BatchNorm2d(640, eps=1e-3), nn.ReLU6()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(640, 8)).to(torch.bfloat16)
    return model.train(), torch.randn(2, 40, 1, 1).to(torch.bfloat16)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_narrow_peak_accuses_nobody(seed):
    model, given = two_numbers_a_channel(seed)

    verdict = check(model, (given,), train=True, backend="aot_eager_decomp_partition")

    assert verdict.status is Status.SAME, verdict.reasons


class Tie(nn.Module):
    """The sum of two batch norms over two numbers: 1 and -1, nearly, of which half precision makes exactly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(8, 32, 1, bias=False), nn.Conv2d(8, 32, 1, bias=False)
        self.one, self.other = nn.BatchNorm2d(32), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.one(self.left(x)) + self.other(self.right(x)))


def tied(seed: int, dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(seed)
    model = Tie().to(dtype)
    return model, ((3 * torch.randn(2, 8, 1, 1)).to(dtype),)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_tie_of_numbers_that_look_exact_accuses_nobody(seed, dtype):
    model, given = tied(seed, dtype)

    verdict = check(model, given, train=True, seed=seed, backend="aot_eager_decomp_partition")

    assert verdict.status is Status.SAME, verdict.reasons


@pytest.mark.parametrize(("target", "factor"), [("batch_norm", 1.1), ("conv2d", -1.0), ("relu", 1.1)])
def test_a_fault_beside_a_tie_is_seen(target, factor):
    model, given = tied(0, torch.bfloat16)

    verdict = check(model, given, train=True, backend=scaled(target, factor))

    assert verdict.status is Status.DIFFERS, verdict.reasons


def scaled(target, factor):
    """A backend that is right but for the results of one operation."""

    def backend(graph_module, inputs):
        for node in list(graph_module.graph.nodes):
            if node.op.startswith("call") and target in str(node.target):
                with graph_module.graph.inserting_after(node):
                    wrong = graph_module.graph.call_function(torch.mul, (node, factor))
                node.replace_all_uses_with(wrong)
                wrong.args = (node, factor)
        graph_module.recompile()
        return graph_module.forward

    return backend


@pytest.mark.parametrize(("target", "factor"), [("linear", 1.05), ("batch_norm", 1.1), ("conv2d", 1.1)])
def test_a_fault_beside_it_is_seen(target, factor):
    model, given = two_numbers_a_channel(0)

    verdict = check(model, (given,), train=True, backend=scaled(target, factor))

    assert verdict.status is Status.DIFFERS, verdict.reasons


def leaf(value: torch.Tensor, role: str = "gradient") -> Leaf:
    return Leaf(path="grad.weight", role=role, value=value)


def expected() -> Expectation:
    torch.manual_seed(0)
    truth = torch.randn(SHAPE, dtype=torch.float64)
    found = Expectation(leaf(truth.float()), {"": truth})
    for _ in range(6):
        found.add(leaf((truth * (1 + 1e-7 * torch.randn(SHAPE).double())).float()))
    return found


def accused(score: float, kind: Kind = Kind.VALUE) -> LeafReport:
    return LeafReport(
        path="grad.weight",
        role="gradient",
        status=Status.DIFFERS,
        dtype="float32",
        shape=SHAPE,
        score=score,
        mismatches=(Mismatch(kind=kind, detail="value"),),
    )


def off(expectation: Expectation, score: float, tolerance: Tolerance) -> Leaf:
    """A leaf of a run that is judged to be about so far off."""
    eager = expectation.leaf.value
    wrong = eager.clone()
    wrong[0, 0] += 1e-6
    once = expectation.judge(leaf(wrong), tolerance).score
    wrong[0, 0] = eager[0, 0] + 1e-6 * score / once
    return leaf(wrong)


def test_ordinary_numbers_take_few_runs_and_forgive_nothing():
    expectation, tolerance = expected(), Tolerance()
    found = Innocents({"grad.weight": accused(20.0)}, {"grad.weight": expectation}, tolerance)
    for runs in range(FEWEST_RIGHT):
        assert found.want_another(runs)
        found.watch(expectation.leaf)
    assert not found.want_another(FEWEST_RIGHT)
    assert found.forgiven == set()


def test_where_a_leaf_is_far_off_fewer_are_made():
    found = Innocents({"grad.weight": accused(900.0)}, {"grad.weight": expected()}, Tolerance(), far=True)
    assert found.want_another(FEWEST_WHERE_FAR - 1)
    assert not found.want_another(FEWEST_WHERE_FAR)


@pytest.mark.parametrize(("times", "forgiven"), [(0.7, True), (1.5, True), (2.5, False)])
def test_a_candidate_must_be_clearly_farther_off_than_a_right_run(times, forgiven):
    expectation, tolerance = expected(), Tolerance()
    right = off(expectation, 20.0, tolerance)
    score = expectation.judge(right, tolerance).score
    assert score > tolerance.threshold
    assert 1.5 < FARTHER < 2.5

    found = Innocents({"grad.weight": accused(times * score)}, {"grad.weight": expectation}, tolerance)
    found.watch(right)

    assert (found.forgiven == {"grad.weight"}) is forgiven
    assert found.want_another(FEWEST_RIGHT) is not forgiven  # A leaf that is wild is worth more runs.
    assert not found.want_another(MOST_RIGHT)


def test_a_right_run_that_is_near_but_not_wrong_forgives_nothing():
    expectation, tolerance = expected(), Tolerance()
    found = Innocents({"grad.weight": accused(9.0)}, {"grad.weight": expectation}, tolerance)
    found.watch(off(expectation, 6.0, tolerance))
    assert found.wild == {"grad.weight"}
    assert found.forgiven == set()


@pytest.mark.parametrize("kind", [Kind.NONFINITE, Kind.SHAPE, Kind.DTYPE, Kind.STRUCTURE])
def test_what_no_rounding_explains_asks_for_none(kind):
    found = Innocents({"grad.weight": accused(20.0, kind)}, {"grad.weight": expected()}, Tolerance())
    assert not found.want_another(0)


def test_numbers_that_are_exact_ask_for_none():
    expectation = expected()
    expectation.exact = True
    assert not Innocents({"grad.weight": accused(20.0)}, {"grad.weight": expectation}, Tolerance()).want_another(0)


def pooled_sines(values: torch.Tensor) -> torch.Tensor:
    """A sum of numbers that are too small for float16, which eager loses one by one and fused code does not."""
    return nn.functional.lp_pool2d(torch.sinc(values), 1, 2)


def test_numbers_that_eager_loses_in_half_precision_accuse_nobody():
    verdict = check(pooled_sines, (torch.ones(2, 3, 4, 4, dtype=torch.float16),))

    assert verdict.status is Status.SAME, verdict.reasons
    (output,) = (leaf for leaf in verdict.leaves if leaf.role == "output" and leaf.elements)
    assert output.candidate_error > output.eager_error  # The compiler does keep what eager loses.
