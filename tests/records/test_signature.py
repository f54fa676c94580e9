"""What a failure is recognised by: a run that fails, before anything that was seen of its leaves."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from torchparity import Status, check
from torchparity.records import Kind, Signature, signature_of, signatures_of


def transposed_then(failing):
    """A backend whose forward has other strides, and whose backward fails."""

    def forward(graph, inputs):
        def run(*args):
            return [
                value.t().contiguous().t() if isinstance(value, torch.Tensor) and value.dim() == 2 else value
                for value in graph(*args)
            ]

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=forward, bw_compiler=failing)


def fails_to_compile(graph, inputs):
    raise ValueError("no such thing")


def fails_to_run(graph, inputs):
    def run(*args):
        raise ArithmeticError("not today")

    return make_boxed_func(run)


@pytest.mark.parametrize(("failing", "error"), [(fails_to_compile, "ValueError"), (fails_to_run, "ArithmeticError")])
def test_a_run_that_fails_is_known_by_that_and_not_by_what_was_seen_before(failing, error):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    verdict = check(model, (torch.randn(5, 4),), backend=transposed_then(failing), train=True)
    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.RAISES.value
    first, *others = signatures_of(verdict)
    assert (first.kind, first.error) == (Kind.RAISES.value, error)
    assert signature_of(None, verdict) == first
    assert all(not other.error for other in others)
    assert Signature(kind=Kind.STRIDE.value) in others


def test_where_no_run_fails_it_is_known_by_the_worst_leaf():
    verdict = check(torch.tanh, (torch.randn(5, 4),), backend=transposed_then(None))
    assert verdict.kind == Kind.STRIDE.value
    assert [found.kind for found in signatures_of(verdict)] == [Kind.STRIDE.value]


@pytest.mark.parametrize("signal", ["SIGABRT", "SIGSEGV", "SIGBUS"])
def test_by_which_signal_destroyed_memory_ends_a_process_is_chance(signal):
    """A search that pins one of them would lose the failure at the first question that ends in another."""
    assert Signature(kind="crashes", error=signal) == Signature(kind="crashes", error="SIGSEGV")
    assert Signature(kind="crashes", error=signal) != Signature(kind="crashes", error="SIGFPE")
    assert Signature(kind="raises", error=signal).error == signal
