"""Exact data: results that no order of additions can change are compared without any tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchparity import UsageError, check
from torchparity.records import Status
from torchparity.run.exact_data import fillable, with_exact_data
from torchparity.run.exactness import step_of
from torchparity.run.subject import Subject

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Net(torch.nn.Module):
    """Convolution, product, gather, mask and sum: everything that exact data can go through."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.inner = torch.nn.Linear(16, 32)
        self.outer = torch.nn.Linear(32, 8)

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.table(tokens) + x
        h = torch.relu(self.inner(h))
        h = h.masked_fill(tokens.unsqueeze(-1) % 3 == 0, 0.0)
        return self.outer(h), h.flip(1).cumsum(1).transpose(1, 2)


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randint(0, 50, (4, 12)), torch.randn(4, 12, 16).to(dtype)


def at_operation(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return a backend that changes the result of every operation of one name."""

    class Changing(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            result = super().run_node(node)
            called = getattr(node.target, "__name__", str(node.target))
            return change(result) if node.op.startswith("call") and name in called else result

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        return lambda *args: Changing(graph).run(*args)

    return backend


def last_two_swapped(values: torch.Tensor) -> torch.Tensor:
    changed = values.clone()
    changed[..., -1], changed[..., -2] = values[..., -2], values[..., -1]
    return changed


def one_element(values: torch.Tensor) -> torch.Tensor:
    changed = values.clone()
    flat = changed.view(-1)
    place = int(flat.abs().argmax())
    flat[place] = flat[place] * 2 if flat[place] else 1
    return changed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_clean_model_is_the_same_and_says_what_was_exact(dtype: torch.dtype, backend: str) -> None:
    verdict = check(Net().to(dtype), inputs(dtype), backend=backend, backward=True, exact=True)

    assert verdict.status is Status.SAME, verdict.reasons
    assert {"output[1]"} <= set(verdict.exact)
    assert any("stay exact" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", [last_two_swapped, one_element], ids=["swapped", "one element"])
@pytest.mark.parametrize("place", ["masked_fill", "flip", "relu", "cumsum"])
def test_a_wrong_index_or_mask_is_seen_without_tolerance(place: str, change: Any, dtype: torch.dtype) -> None:
    verdict = check(Net().to(dtype), inputs(dtype), backend=at_operation(place, change), exact=True)

    assert verdict.status is Status.DIFFERS


def test_a_difference_below_the_noise_is_seen_on_exact_data() -> None:
    weights = torch.randn(64, 64)

    def off_by_little(result: torch.Tensor) -> torch.Tensor:
        changed = result.clone()
        changed[3, 5] += torch.finfo(torch.float32).eps * 2 * float(result.abs().max())
        return changed

    backend = at_operation("matmul", off_by_little)
    given = (torch.randn(64, 64),)

    assert check(lambda x: x @ weights, given, backend=backend).status is Status.SAME
    verdict = check(lambda x: x @ weights, given, backend=backend, exact=True)
    assert verdict.status is Status.DIFFERS
    assert "on exact data" in verdict.reasons[0]


def test_a_decision_in_the_model_forgives_nothing_on_exact_data() -> None:
    """Float64 by itself may stand on the candidate's side of a step only where something was rounded."""
    weights = torch.randn(64, 64)

    def model(x: torch.Tensor) -> torch.Tensor:
        made = x @ weights
        return torch.where(made > 1, made, made + 4).floor() + made

    def off_by_little(result: torch.Tensor) -> torch.Tensor:
        changed = result.clone()
        changed[3, 5] += torch.finfo(torch.float32).eps * 2 * float(result.abs().max())
        return changed

    verdict = check(model, (torch.randn(64, 64),), backend=at_operation("matmul", off_by_little), exact=True)

    assert verdict.status is Status.DIFFERS
    assert "on exact data" in verdict.reasons[0]


def test_what_is_exact_already_is_left_as_it_is() -> None:
    """A mask means something: ones, zeros and minus infinity stay where they are."""
    causal = torch.full((6, 6), -torch.inf).triu(1)
    kept = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    drawn = torch.randn(6, 6)

    assert [fillable(given) for given in (causal, kept, drawn)] == [False, False, True]
    with with_exact_data(Subject(torch.add, (drawn, causal)), 0) as subject:
        ((given, mask), _) = subject.calls()[0]

    assert torch.equal(mask, causal)
    assert not torch.equal(given, drawn)


def test_what_rounds_is_judged_by_the_noise_as_ever() -> None:
    verdict = check(lambda x: torch.softmax(x, -1).sum(0), (torch.randn(4, 8),), backend="aot_eager", exact=True)

    assert verdict.status is Status.SAME
    assert "output" not in verdict.exact


def test_the_model_is_given_back_as_it_was() -> None:
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given = inputs(torch.float32)
    held = given[1].clone()

    check(model, given, backend="aot_eager", exact=True)

    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(held, given[1])


def test_without_a_reference_nobody_knows_what_is_exact() -> None:
    with pytest.raises(UsageError, match="exact data need the float64 reference"):
        check(torch.sin, (torch.randn(3),), exact=True, reference=False)


@pytest.mark.parametrize(
    ("values", "step"), [([3.0, 5.0], 1.0), ([4.0, 12.0], 4.0), ([0.5, 3.0], 0.5), ([0.0], 1.0), ([0.75], 0.25)]
)
def test_the_step_that_values_are_multiples_of(values: list[float], step: float) -> None:
    assert step_of(torch.tensor(values)) == step


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_sums_in_another_order_never_alarm(seed: int, dtype: torch.dtype) -> None:
    """Additions from the last to the first, in blocks, and products by reciprocals: all of them correct."""
    torch.manual_seed(seed)
    weights = torch.randn(48, 24).to(dtype)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ weights, x.sum(-1), x.mean(0), (x / 4).cumsum(-1)

    def reordered(graph: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[torch.Tensor, ...]:
            x = next(value for value in args if value.shape == (16, 48))
            blocks = [x[:, place : place + 16] @ weights[place : place + 16] for place in (32, 0, 16)]
            backwards = x.flip(-1).sum(-1)
            return blocks[0] + (blocks[1] + blocks[2]), backwards, x.flip(0).mean(0), (x * 0.25).cumsum(-1)

        return run

    verdict = check(model, (torch.randn(16, 48).to(dtype),), backend=reordered, exact=True, ignore=["stride"])

    assert verdict.status is Status.SAME, verdict.reasons


def test_what_shares_memory_with_another_output_is_as_exact_as_it() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spread = x.var(2)
        return spread, spread.view(-1), spread[:2], x[1:], x

    verdict = check(model, ((torch.arange(45) % 5).view(3, 5, 3).float(),), backend="aot_eager", exact=True)

    assert verdict.exact == ("output[3]", "output[4]")


def test_an_output_that_is_a_view_has_a_truth_of_its_own() -> None:
    """In float16 a sum in blocks is nearer to float64 than eager's: seen at the view as at what it is a view of."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = torch.sin(x) / 3
        return total, total.view(-1)

    verdict = check(model, (torch.randn(64, 64).half(),), backend="aot_eager")
    errors = {leaf.path: leaf.eager_rms_error for leaf in verdict.leaves if leaf.path.startswith("output")}

    assert errors["output[0]"] == errors["output[1]"] > 0


@pytest.mark.parametrize("operation", [torch.sgn, torch.sign, torch.round, torch.floor, lambda x: x.ceil() + x.trunc()])
def test_gradients_that_are_nothing_at_all_are_left_alone(operation: Callable[..., Any]) -> None:
    """Autograd hands out zeros that have no memory; looking into them ended the process."""
    given = (torch.arange(24) * 3 % 8 - 4.0).view(2, 3, 4).requires_grad_()

    assert check(operation, (given,), backend="aot_eager", exact=True).status is Status.SAME


def test_rounding_to_decimals_rounds() -> None:
    """It scales, rounds, and scales back: a product by the reciprocal is another number in the last digit."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.round(x * 0.25, decimals=3), torch.round(x)

    def reciprocal(graph: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        return lambda x: (torch.round(x * 0.25 * 1000) * 0.001, torch.round(x))

    verdict = check(model, ((torch.arange(16) % 5 - 5.0).view(2, 8),), backend=reciprocal, exact=True)

    assert verdict.status is Status.SAME, verdict.reasons
    assert verdict.exact == ("output[1]",)


def of_thirds(x: torch.Tensor) -> torch.Tensor:
    return x.clone().div_(3)


def copied_thirds(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).copy_(x / 3)


def reciprocals(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() + 2.5).reciprocal()


def to_the_minus_one(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() + 2.5) ** -1


def between(x: torch.Tensor) -> torch.Tensor:
    return torch.lerp(x, x.flip(0), 0.3)


ROUNDING = [
    (operation, dtype)
    for operation in (of_thirds, copied_thirds, reciprocals, to_the_minus_one, between)
    for dtype in (torch.float64, *DTYPES)
] + [(of_thirds, torch.complex128), (copied_thirds, torch.complex128)]


@pytest.mark.parametrize(("operation", "dtype"), ROUNDING)
def test_what_rounds_is_not_exact_in_any_dtype_nor_in_place(operation: Callable[..., Any], dtype: torch.dtype) -> None:
    x = torch.arange(12.0).reshape(3, 4).to(dtype)
    verdict = check(operation, (x,), exact=True, backend="aot_eager")
    assert verdict.status is Status.SAME
    assert "output" not in verdict.exact


def test_halves_stay_exact_in_float64_and_in_place() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.clone().div_(4).add_(0.5).mul_(3)

    verdict = check(halves, (torch.arange(12.0, dtype=torch.float64),), exact=True, backend="aot_eager")
    assert "output" in verdict.exact


WEIGHED = [
    pytest.param("bilinear", True, (4, 1), marks=pytest.mark.slow),
    ("bilinear", False, (3, 2)),
    pytest.param("bilinear", True, (5, 7), marks=pytest.mark.slow),
    pytest.param("bicubic", False, (3, 5), marks=pytest.mark.slow),
    ("bicubic", True, (2, 3)),
]


@pytest.mark.parametrize(("mode", "corners", "size"), WEIGHED)
def test_weights_that_a_kernel_rounds_for_itself_make_nothing_exact(
    mode: str, corners: bool, size: tuple[int, int]
) -> None:
    """In float64 nothing tells the truth: 1 where another formula gives 1 + 2e-16 is no difference."""
    given = (torch.arange(48) % 5 - 1).view(1, 3, 4, 4).double().requires_grad_()
    small = (torch.arange(12) % 5 - 1).view(1, 3, 2, 2).double().requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, size=size, mode=mode, align_corners=corners)

    for x in (given, small):
        verdict = check(function, (x,), exact=True)
        assert verdict.status is Status.SAME, verdict.reasons
