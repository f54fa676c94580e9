"""Ties and kinks, beside differences of another kind."""

import pytest
import torch

from torchparity import Severity, Status, check


def tied():
    given = torch.zeros(4, 100)
    given[:, [5, 90]] = 0.7
    return given


def step(x):
    """Each row's value at the place of a tie that rounding decides, and the rows themselves."""
    values = x * 0.3 / 0.3
    return torch.arange(100.0)[values.argmax(-1)], values


def other(first, second):
    def backend(graph_module, inputs):
        def run(*args):
            one, two = graph_module(*args)
            return (first(one), second(two))

        return run

    return backend


def same(result):
    return result


def column_major(result):
    return result.t().contiguous().t()


def spread(result):
    """The same values, every second place."""
    wide = torch.empty(2 * len(result))
    wide[::2] = result
    return wide[::2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda index: torch.full_like(index, 90.0), column_major),
        (lambda index: spread(torch.full_like(index, 90.0)), same),
        (lambda index: spread(torch.full_like(index, 90.0)), column_major),
    ],
    ids=["at another leaf", "at the same leaf", "at both"],
)
def test_another_layout_does_not_make_a_tie_an_error(first, second):
    verdict = check(step, (tied(),), backend=other(first, second))

    assert verdict.status is Status.DIFFERS
    assert verdict.severity is Severity.LAYOUT, [(leaf.path, leaf.mismatches) for leaf in verdict.leaves]
    assert all(leaf.kind in ("stride", "") for leaf in verdict.leaves)


def test_a_value_far_beyond_those_of_the_tie_is_wrong_beside_another_layout():
    verdict = check(step, (tied(),), backend=other(lambda index: torch.full_like(index, 4000.0), column_major))

    assert verdict.severity is Severity.WRONG


def test_a_tie_alone_is_none():
    verdict = check(step, (tied(),), backend=other(lambda index: torch.full_like(index, 90.0), same))

    assert verdict.status is Status.SAME, verdict.reasons


def test_what_is_made_of_an_index_that_rounding_decides_is_no_error():
    """In float16 erf(-4) and erf(-3) are both -1, in float64 they are not: one of many may be chosen."""

    def program(x):
        index = torch.erf(x).argmin(1)
        return index, index * 2, index.cummax(0).values, index == 12

    def other_side(graph_module, inputs):
        def run(*args):
            index = torch.erf(args[0].double()).argmin(1)
            return (index, index * 2, index.cummax(0).values, index == 12)

        return run

    def another(graph_module, inputs):
        return lambda *args: [part + 1 if part.dtype is torch.int64 else part for part in graph_module(*args)]

    given = (torch.arange(17 * 33) * 7 % 9 - 4).view(17, 33).to(torch.float16)
    assert check(program, (given,), backend=other_side).status is Status.SAME
    assert check(program, (given,), backend=another).status is Status.DIFFERS
