"""A model that decides by a number what to run: rounding may decide the number, and a compiler may not."""

import pytest
import torch

from torchparity import Status, check

SEEN = torch.arange(9).view(1, 3, 3).float()


def flattened(a):
    return a.reshape(-1) if torch.nn.functional.instance_norm(a).sum() else a


def doubled(a):
    return a * 2 if torch.nn.functional.instance_norm(a).sum() else a


def two_or_one(a):
    return (a, a + 1) if torch.nn.functional.instance_norm(a).sum() else (a,)


def summing(total):
    """Return a backend under which every sum comes out as some function of it."""

    def backend(graph_module, inputs):
        for node in graph_module.graph.nodes:
            if node.op == "call_method" and node.target == "sum":
                node.op, node.target = "call_function", total
        graph_module.recompile()
        return graph_module.forward

    return backend


def nothing(tensor):
    return torch.zeros(())


def a_rounding(tensor):
    return tensor.sum() * 0 + 1.2e-7


@pytest.mark.parametrize("model", [flattened, doubled, two_or_one])
@pytest.mark.parametrize("total", [nothing, a_rounding])
def test_whoever_decides_otherwise_where_rounding_decides_is_right(model, total):
    """Eager's own sum is one of the two."""
    verdict = check(model, (SEEN,), backend=summing(total))

    assert verdict.status is Status.SAME, verdict.reasons


def test_a_compiler_that_rounds_otherwise_is_right():
    verdict = check(flattened, (SEEN,))

    assert verdict.status is Status.SAME, verdict.reasons


@pytest.mark.parametrize("total", [nothing, a_rounding])
def test_what_is_wrong_in_the_other_branch_is_seen(total):
    def lost(a):
        return (a * 2).sigmoid() if torch.nn.functional.instance_norm(a).sum() else (a * 3).sigmoid()

    def backend(graph_module, inputs):
        run = summing(total)(graph_module, inputs)
        names = {str(node.target) for node in graph_module.graph.nodes}

        def wrong(*args):
            outputs = run(*args)
            return tuple(out * 1.001 for out in outputs) if "sigmoid" in names else outputs

        return wrong

    assert check(lost, (SEEN,), backend=backend).status is Status.DIFFERS


def clear(a):
    return a.reshape(-1) if a.sum() else a


def test_a_number_that_no_rounding_makes_zero_decides_for_everybody():
    verdict = check(clear, (SEEN,), backend=summing(nothing))

    assert verdict.status is Status.DIFFERS
    assert verdict.kind == "shape"


def touchy(a):
    if (a / 3).mean().item() != EXPECTED:
        raise ValueError("moved")
    return (a, a + 1) if a.sum() else (a,)


TOUCHED = SEEN + 0.1
EXPECTED = (TOUCHED / 3).mean().item()


def test_a_run_that_raises_explains_no_leaf_that_is_missing():
    """Neither float64 nor moved roundings get past the first line: what they have not told is no other branch."""
    verdict = check(touchy, (TOUCHED,), backend=summing(nothing))

    assert verdict.status is Status.DIFFERS
    assert {leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS} >= {"output[1]"}
