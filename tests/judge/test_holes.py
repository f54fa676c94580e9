"""Verdicts where a wrong result, or none at all, once passed for the same: each class with its kin."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from torchparity import check
from torchparity.compilers.candidates import Given
from torchparity.judge.coverage import Coverage
from torchparity.judge.oracle import Oracle
from torchparity.judge.settings import Settings
from torchparity.records import Severity, Status
from torchparity.report.terminal import extent_text
from torchparity.run.plan import Plan
from torchparity.run.subject import Subject

Graph = torch.fx.GraphModule


def changed(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    """Return a backend that changes the first result of every graph."""

    def backend(graph: Graph, inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[Any, ...]:
            first, *others = graph(*args)
            return (change(first), *others)

        return run

    return backend


# --- 0: whatever a result can be, the checker lives -------------------------------------------------------


def memory_mapped(folder: Path) -> torch.Tensor:
    path = folder / "weights"
    np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32).tofile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r", shape=(32, 32)))


ALIVE: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "zeros without memory, made by autograd": (torch.sgn, lambda: (torch.randn(20, 20, requires_grad=True),)),
    "zeros without memory, returned": (lambda x: (x * 2, torch._efficientzerotensor(3, 3)), lambda: (torch.randn(3),)),
    "zeros without memory, given": (lambda x, z: x + z, lambda: (torch.randn(3, 3), torch._efficientzerotensor(3, 3))),
    "meta": (lambda x: (x + 1, torch.empty(3, device="meta") + 1), lambda: (torch.randn(3),)),
    "expanded": (lambda x: x.sin().expand(4, 3), lambda: (torch.randn(3),)),
    "overlapping": (lambda x: x.sin().unfold(0, 3, 1), lambda: (torch.randn(30),)),
    "conjugate": (lambda x: torch.fft.fft(x).conj(), lambda: (torch.randn(30, requires_grad=True),)),
    "negative, written to": (lambda x: x.conj().imag.mul_(1.1), lambda: (torch.randn(300, dtype=torch.complex64),)),
    "sparse gradient": (
        lambda w: torch.nn.functional.embedding(torch.tensor([1, 2]), w, sparse=True),
        lambda: (torch.randn(10, 4, requires_grad=True),),
    ),
    "nested": (
        lambda x: x * 2,
        lambda: (torch.nested.nested_tensor([torch.randn(3), torch.randn(4)], layout=torch.jagged),),
    ),
    "nested, strided": (lambda x: x * 2, lambda: (torch.nested.nested_tensor([torch.randn(3), torch.randn(4)]),)),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), lambda: (torch.randn(3),)),
    "eight bits": (lambda x: x.to(torch.float8_e4m3fn), lambda: (torch.randn(30),)),
    "a subclass": (lambda x: x.sin() * 2, lambda: (TwoTensor(torch.randn(3), torch.randn(3)),)),
    "empty": (lambda x: x.sum(), lambda: (torch.randn(0, 3, requires_grad=True),)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(ALIVE))
def test_a_result_of_any_sort_is_judged(name: str) -> None:
    function, inputs = ALIVE[name]

    verdict = check(function, inputs(), backend="aot_eager", allow_eager=True)

    assert verdict.status is Status.SAME, verdict.reasons


def test_parameters_that_lie_in_a_file_are_left_alone(tmp_path: Path) -> None:
    layer = torch.nn.Linear(32, 32)
    layer.weight = torch.nn.Parameter(memory_mapped(tmp_path), requires_grad=False)

    assert check(layer, (torch.randn(3, 32),), backend="aot_eager").status is Status.SAME


def test_an_error_of_our_own_judgement_is_no_verdict_on_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchparity.judge import hearing

    def broken(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(hearing, "compare_all", broken)

    verdict = check(torch.nn.ReLU(), (torch.randn(4),), backend="aot_eager")

    assert verdict.status is Status.UNKNOWN
    assert any("ZeroDivisionError: ours" in reason for reason in verdict.reasons)


# --- 1: the caller's gradient mode ------------------------------------------------------------------------


def modes_seen(**options: Any) -> list[tuple[bool, bool]]:
    seen: list[tuple[bool, bool]] = []

    def backend(graph: Graph, inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            return graph(*args)

        return run

    check(torch.nn.Linear(3, 3), (torch.randn(2, 3),), backend=backend, **options)
    return list(dict.fromkeys(seen))


def test_a_model_runs_in_the_mode_that_was_asked_for() -> None:
    assert modes_seen() == [(True, False)]
    assert modes_seen(no_grad=True) == [(False, False)]
    assert modes_seen(inference_mode=True) == [(False, True)]


def test_a_model_runs_in_the_mode_of_the_caller() -> None:
    with torch.no_grad():
        assert modes_seen() == [(False, False)]
        assert modes_seen(train=True) == [(True, False)]
    with torch.inference_mode():
        assert modes_seen() == [(False, True)]


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "no leaf"])
def test_an_input_that_asks_for_a_gradient_gets_one_judged(leaf: bool) -> None:
    value = torch.randn(5, requires_grad=True)
    given = value if leaf else value * 2

    def wrong_backward(graph: Graph, inputs: list[Any]) -> Callable[..., Any]:
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
                return x.sin()

            @staticmethod
            def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                return gradient * 3

        return lambda x: (Wrong.apply(x),)

    verdict = check(torch.sin, (given,), backend=wrong_backward)

    assert verdict.status is Status.DIFFERS
    assert [report.path for report in verdict.leaves if report.status is Status.DIFFERS] == ["grad.args[0]"]
    assert check(torch.sin, (given,), backend=wrong_backward, backward=False).status is Status.SAME


def test_a_backend_that_fails_on_an_input_that_is_no_leaf_is_seen() -> None:
    given = torch.randn(5, requires_grad=True) * 2

    verdict = check(torch.relu, (given,), backend="non_leaf_compile_error_TESTING_ONLY")

    assert verdict.status is Status.DIFFERS and verdict.severity is Severity.FAILS


def test_gradients_inside_the_forward_pass_are_judged() -> None:
    def forces(positions: torch.Tensor) -> torch.Tensor:
        positions = positions.detach().requires_grad_()
        return -torch.autograd.grad((positions**3).sum(), positions)[0]

    assert check(forces, (torch.randn(4, 3),), backend="aot_eager", allow_eager=True).status is Status.SAME


def test_a_result_that_forgets_where_it_comes_from_differs() -> None:
    weight = torch.randn(4, requires_grad=True)

    verdict = check(
        lambda x: x * weight, (torch.randn(4),), backend=changed(lambda result: result.detach().requires_grad_())
    )

    assert [mismatch.detail for mismatch in verdict.leaves[0].mismatches] == ["grad_fn"]
    assert verdict.severity is Severity.LAYOUT


# --- 2: classes of tensors --------------------------------------------------------------------------------


class Labelled(torch.Tensor):
    """A tensor that holds another one, and says so to nobody."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> Labelled:
        made: Labelled = torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, elem: torch.Tensor) -> None:
        self.elem = elem

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tree_map = torch.utils._pytree.tree_map
        opened = tree_map(lambda leaf: leaf.elem if isinstance(leaf, Labelled) else leaf, (args, kwargs or {}))
        results = func(*opened[0], **opened[1])
        return tree_map(lambda leaf: Labelled(leaf) if isinstance(leaf, torch.Tensor) else leaf, results)


@pytest.mark.parametrize("made", [lambda: TwoTensor(torch.randn(3), torch.randn(3)), lambda: Labelled(torch.randn(3))])
def test_the_class_of_a_result_is_a_fact_and_its_parts_are_compared(made: Callable[[], torch.Tensor]) -> None:
    given = made()

    def plain(x: Any) -> torch.Tensor:
        return torch.zeros(3)

    def shifted(x: Any) -> Any:
        result = x.sin()
        inner = [getattr(result, name) + 1 for name in ("a", "b", "elem") if hasattr(result, name)]
        return type(result)(*inner)

    def judged(compiled: Callable[..., Any]) -> Status:
        return Oracle(Subject(torch.sin, (given,)), Plan(), Given(compiled), Settings()).judge().status

    assert judged(torch.sin) is Status.SAME
    assert judged(plain) is Status.DIFFERS
    assert judged(shifted) is Status.DIFFERS


# --- 3: nothing was compiled ------------------------------------------------------------------------------


@torch._dynamo.disable
def left_alone(x: torch.Tensor) -> torch.Tensor:
    return x.cos().cos()


class Locked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            return x.sin()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "inputs", "why"),
    [
        (lambda x: left_alone(x), lambda: (torch.randn(3),), "disable"),
        (Locked(), lambda: (torch.randn(3),), "ontext manager"),
        (torch.nn.LSTM(4, 4), lambda: (torch.randn(3, 4),), "LSTM"),
        (lambda x: x * 2, lambda: (torch.randn(5, 5).to_sparse(),), "sparse"),
    ],
    ids=["disabled", "lock", "LSTM", "sparse"],
)
def test_a_model_of_which_nothing_was_compiled_is_unknown_and_why(
    model: Any, inputs: Callable[[], Any], why: str
) -> None:
    verdict = check(model, inputs(), backend="aot_eager")

    assert verdict.status is Status.UNKNOWN
    assert "nothing was compiled" in verdict.reasons[0]
    assert why in verdict.reasons[1]
    assert verdict.compiled is not None and any(why in left for left in verdict.compiled.left)
    assert check(model, inputs(), backend="aot_eager", allow_eager=True).status is Status.SAME


def test_a_backend_that_fails_in_silence_has_compiled_nothing() -> None:
    def fails(graph: Graph, inputs: list[Any]) -> Callable[..., Any]:
        raise RuntimeError("no")

    verdict = check(torch.sin, (torch.randn(3),), backend=fails, config={"dynamo.suppress_errors": True})

    assert verdict.status is Status.UNKNOWN and "nothing was compiled" in verdict.reasons[0]


def test_dynamo_that_is_turned_off_has_compiled_nothing() -> None:
    program = "import torch, torchparity; print(torchparity.check(torch.sin, (torch.randn(3),)).status.value)"
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}

    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "unknown"


def test_the_verdict_says_how_much_was_compiled() -> None:
    whole = check(lambda x: x.sin().cos() + 1, (torch.randn(3),), backend="eager").compiled
    half = check(lambda x: left_alone(x.sin().sin()), (torch.randn(3),), backend="eager").compiled

    assert whole is not None and (whole.inside, whole.operations, whole.graphs) == (3, 3, 1)
    assert half is not None and (half.inside, half.operations) == (2, 4) and half.share == 0.5
    assert whole.left == () and any("disable" in left for left in half.left)


def test_what_was_left_to_python_is_told_beside_how_much_was_compiled() -> None:
    half = check(lambda x: left_alone(x.sin().sin()), (torch.randn(3),), backend="eager")

    assert "compiled: 2 of 4 operations, in 1 graph; left to Python: " in extent_text(half)
    assert "left to Python" not in extent_text(check(torch.sin, (torch.randn(3),), backend="eager"))


@pytest.mark.filterwarnings("ignore")
def test_why_code_was_left_to_python_is_told_of_one_candidate_only() -> None:
    coverage = Coverage()
    torch.compile(lambda x: left_alone(x.sin()), backend="eager")(torch.randn(3))
    assert coverage.left
    coverage.forget()
    assert coverage.left == ()


# --- 4: what is not compared ------------------------------------------------------------------------------


def test_what_is_not_compared_is_no_agreement() -> None:
    for change, ignored in [
        (lambda result: None, "structure"),
        (lambda result: result.to(torch.int64), "dtype"),
        (lambda result: result.to(torch.complex64).to(torch.bool), "dtype"),
    ]:
        verdict = check(torch.sin, (torch.randn(3),), backend=changed(change), ignore=[ignored])
        assert verdict.status is not Status.SAME, (ignored, verdict.reasons)


def test_another_dtype_that_can_be_compared_may_be_ignored() -> None:
    verdict = check(torch.sin, (torch.randn(3),), backend=changed(lambda it: it.double()), ignore=["dtype"])

    assert verdict.status is Status.SAME


# --- 6: indices under noise -------------------------------------------------------------------------------


def nearly_tied(*places: int) -> torch.Tensor:
    values = torch.zeros(1, 100)
    values[0, list(places)] = 1.0
    return values


@pytest.mark.parametrize("operation", ["argmax", "topk", "max"])
def test_an_index_between_those_of_a_tie_is_wrong(operation: str) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        values = x * 0.3 / 0.3  # Two equal values, each rounded by itself.
        found = {"argmax": lambda: values.argmax(-1), "topk": lambda: values.topk(1).indices[..., 0]}
        return found.get(operation, lambda: values.max(-1).indices)()

    given = nearly_tied(5, 90) * 0.7

    tied = check(chosen, (given,), backend=changed(lambda index: torch.full_like(index, 90)))
    between = check(chosen, (given,), backend=changed(lambda index: torch.full_like(index, 40)))

    assert tied.status is Status.SAME, tied.reasons
    assert between.status is Status.DIFFERS, between.reasons


def test_the_first_of_equal_exact_values_is_the_largest() -> None:
    verdict = check(
        lambda x: x.argmax(-1), (nearly_tied(5, 90),), backend=changed(lambda index: torch.full_like(index, 90))
    )

    assert verdict.status is Status.DIFFERS


# --- 9: uninitialised memory ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        lambda x: (x.sin(), torch.empty(5)),
        lambda x: (x.sin(), torch.empty_like(x) + 1),
        lambda x: (x.sin(), x.new_empty(4, dtype=torch.int32)),
        lambda x: (x.sin(), torch.empty_strided((2, 2), (2, 1)).sum()),
    ],
)
def test_uninitialised_memory_is_nobodys_result(model: Callable[..., Any]) -> None:
    verdict = check(model, (torch.randn(4),), backend=changed(lambda result: result))

    assert verdict.status is Status.UNKNOWN, verdict.reasons
    assert "uninitialised" in " ".join(verdict.reasons)


def test_memory_that_is_written_before_it_is_read_is_a_result() -> None:
    def filled(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        made.copy_(x)
        return made.sin()

    assert check(filled, (torch.randn(4),), backend="aot_eager").status is Status.SAME


# --- 10: higher-order operators ---------------------------------------------------------------------------


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.layer, lambda x: self.layer(x) * 2, (x,))


def two_results(x: torch.Tensor) -> Any:
    y = x * 2
    return torch.cond(y.sum() > 0, lambda a, b: (a.sin() * b, a + 1), lambda a, b: (a.cos(), b - 1), (y, x))


def mapped(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as map_rows

    result: torch.Tensor = map_rows(lambda row: row.sin() + 1, x)
    return result


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("model", [Branching(), two_results, mapped], ids=["module", "function", "map"])
def test_branches_are_trained_as_they_are_in_eager(model: Any, backend: str) -> None:
    verdict = check(model, (torch.randn(2, 4, requires_grad=True),), backend=backend)

    assert verdict.status is Status.SAME, verdict.reasons


# --- 12: numbers below the least normal one ---------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e-42), (torch.float64, 1e-310), (torch.bfloat16, 1e-39)])
def test_the_least_numbers_are_judged_or_said_to_be_flushed(dtype: torch.dtype, size: float) -> None:
    given = torch.linspace(1.0, 2.0, 64, dtype=torch.float64).mul(size).to(dtype)

    def judged(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return check(lambda x: x.abs(), (given,), backend=changed(change))

    assert judged(lambda result: -result).status is Status.DIFFERS
    assert judged(lambda result: result * 2).status is Status.DIFFERS
    zeroed = judged(torch.zeros_like)
    assert zeroed.status is Status.SAME
    assert any("flushed" in reason for reason in zeroed.reasons)


# --- 13: how much it matters ------------------------------------------------------------------------------


def test_a_verdict_says_how_much_it_matters() -> None:
    values = torch.cat([torch.tensor([1.0, -1.0]), torch.linspace(1, 2, 30) * 1e-10])

    def severity(change: Callable[[torch.Tensor], Any], **options: Any) -> Severity:
        return check(lambda x: x * 1.7, (values,), backend=changed(change), **options).severity

    assert severity(lambda result: torch.where(result.abs() < 1e-5, 0.0, result)) is Severity.PRECISION
    assert severity(lambda result: result * 1.01) is Severity.WRONG
    assert severity(lambda result: result.clone().fill_(float("nan"))) is Severity.NONFINITE
    assert severity(lambda result: result[:3]) is Severity.STRUCTURE
    assert severity(lambda result: result) is Severity.NONE


def test_the_verdict_says_by_how_much_the_whole_has_moved() -> None:
    verdict = check(lambda x: x * 1.7, (torch.randn(100),), backend=changed(lambda result: result * 1.01))

    assert verdict.leaves[0].moved == pytest.approx(0.01, rel=1e-3)


# --- 7: random numbers that decide what runs --------------------------------------------------------------


class LayerDrop(torch.nn.Module):
    """Leaves out a branch by a random number, and masks by another one."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).tanh()
        return self.second(x) if float(self.draw()) < 0.5 else x * 2


def numpy_mask(x: torch.Tensor) -> torch.Tensor:
    return x * torch.from_numpy(np.random.uniform(size=(4,)) < 0.5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("draw", [lambda: torch.rand([]), lambda: np.random.uniform(), random.random])
def test_a_branch_on_a_random_number_is_the_same_branch(draw: Callable[[], Any], seed: int, backend: str) -> None:
    verdict = check(LayerDrop(draw), (torch.randn(3, 6),), backend=backend, train=True, seed=seed, allow_eager=True)

    assert verdict.status is Status.SAME, verdict.reasons


def test_numbers_of_numpy_are_drawn_as_eager_draws_them() -> None:
    assert check(numpy_mask, (torch.randn(4),), backend="eager").status is Status.SAME


def test_who_draws_other_numbers_and_branches_on_them_is_not_blamed() -> None:
    def draws_more(graph: Graph, inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            torch.rand(7)
            return graph(*args)

        return run

    verdicts = [
        check(LayerDrop(lambda: torch.rand([])), (torch.randn(3, 6),), backend=draws_more, train=True, seed=seed)
        for seed in range(4)
    ]

    assert Status.DIFFERS not in [verdict.status for verdict in verdicts]


# --- 8: a rounding that the compiler skips, then a step ----------------------------------------------------


def without_rounding(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return a backend that keeps float32 between operations, as kernels do that are fused."""
    return changed_by(lambda args: function(args[0].float()).to(args[0].dtype))


def changed_by(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda graph, inputs: lambda *args: (change(args),)


STEPS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.floor(torch.cos(x)),
    lambda x: torch.floor(torch.cos(x * 1.001) * 3).sum(-1),
    lambda x: (torch.round(torch.sin(x) * 4) + 1) * x,
    lambda x: torch.where(torch.cos(x) < 1, x * 2, x * 3),
    lambda x: (torch.sigmoid(x * 9) * 8).trunc() * x,
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", STEPS)
def test_a_step_after_a_rounding_that_is_skipped_is_no_error(function: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = torch.randn(64, 64).mul(0.05).to(dtype)

    verdict = check(function, (given,), backend=without_rounding(function))

    assert verdict.status is Status.SAME, verdict.reasons


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", STEPS[:3])
def test_a_step_to_the_wrong_side_is_one(function: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = torch.randn(64, 64).mul(0.05).to(dtype)

    verdict = check(function, (given,), backend=changed(lambda result: -result - 1))

    assert verdict.status is Status.DIFFERS, verdict.reasons


# --- 11: who draws eager's numbers without being told ------------------------------------------------------


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.view(2, 8, 4, 8).transpose(1, 2) for part in self.inner(x).chunk(3, -1)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, dropout_p=0.2 if self.training else 0.0)
        return self.outer(mixed.transpose(1, 2).reshape(2, 8, 32))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, Status.SAME), (1.001, Status.DIFFERS)])
def test_dropout_under_a_backend_of_ones_own_is_judged(factor: float, expected: Status) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def forward(graph: Graph, inputs: list[Any]) -> Any:
        def run(*args: Any) -> list[Any]:
            first, *others = graph(*args)
            return [first * factor, *others]

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward))

    verdict = check(Attention(), (torch.randn(2, 8, 32),), backend=backend, train=True)

    assert verdict.status is expected, verdict.reasons


def test_where_no_run_with_noise_comes_to_its_end_rounding_is_no_difference() -> None:
    """Nobody knows how much rounding there is: then a rounding more is nobody's fault."""

    def touchy(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        if bool((y != torch.tensor(math.e)).any()):
            raise ValueError("touched")
        return y / 3

    def rounds(graph_module: Any, inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            found = graph_module(*args)
            return tuple(torch.nextafter(one, one + 1) if one.is_floating_point() else one for one in found)

        return run

    verdict = check(touchy, (torch.ones(40),), backend=rounds, noise_runs=3)

    assert verdict.status is not Status.DIFFERS
    assert any("with its roundings moved the model itself raises ValueError" in reason for reason in verdict.reasons)


class DrawsElsewhere(torch.nn.Module):
    """As fused attention with dropout on a GPU: with plain kernels, which float64 needs, it draws other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steady = self.inner(x).tanh()
        if not torch.backends.cuda.flash_sdp_enabled():
            torch.rand(3)
        return self.outer(torch.nn.functional.dropout(steady, 0.5)), steady


@pytest.mark.parametrize(("factor", "expected"), [(1.0, Status.SAME), (1.0001, Status.DIFFERS)])
def test_a_reference_with_other_random_numbers_is_no_truth(
    factor: float, expected: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchparity.run.reference import NeedsPlainKernels, Reference

    class Picky(Reference):
        def operate(self, func: Any, traits: Any, args: Any, kwargs: Any) -> Any:
            if traits.name == "tanh" and not self.plain:
                raise NeedsPlainKernels("tanh")
            return super().operate(func, traits, args, kwargs)

    def backend(graph: Graph, inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            first, *others = graph(*args)
            behind_dropout = any("dropout" in str(node.target) for node in graph.graph.nodes)
            return (first * factor if behind_dropout else first, *others)

        return run

    monkeypatch.setattr("torchparity.judge.ground.Reference", Picky)
    torch.manual_seed(0)
    verdict = check(DrawsElsewhere(), (torch.randn(2, 8, 32),), backend=backend, train=True)

    assert verdict.status is expected, verdict.reasons
    assert any("no float64 form" in reason for reason in verdict.reasons)
    assert not any("nearer to float64" in reason for reason in verdict.reasons)
