"""Locate on planted faults, without a code generator: the taps, the introduced error, fusion, gradients, errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torchparity
from torchparity.diagnosis.locate import Search, cuts_between
from torchparity.diagnosis.taps import Bench, rounding_inputs, tap
from torchparity.graphs.extract import opened_graph
from torchparity.judge.script import write_bundle
from torchparity.repro.opening import open_case
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool


class Chain(torch.nn.Module):
    def forward(self, x):
        x = torch.exp(-x.abs())
        x = torch.sin(x) + 1.0
        x = torch.tanh(x) * 2.0
        x = torch.cos(x)
        return torch.sqrt(x.abs() + 0.5)


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=1, compilers=False) as workers:
        yield workers


def case_of(backend, level="aot", **options):
    torch.manual_seed(0)
    cases = torchparity.capture(Chain(), (torch.randn(6, 5),), backend=backend, **options)
    return next(case for case in cases if case.level == level)


def test_the_planted_operation_is_named_in_one_compilation(pool):
    backend = torchparity.faults.plant("scale_percent", site=5)
    found = torchparity.locate(case_of(backend), pool=pool)
    assert found.compiles == 1
    assert found.how == "introduced"
    assert found.culprit is not None
    wrong = [node for node in found.nodes if node.introduced_kind]
    assert wrong == [found.culprit]
    assert found.culprit.line.endswith(("torch.tanh(x) * 2.0", "torch.cos(x)", "torch.sin(x) + 1.0"))
    behind = [node for node in found.nodes if node.place > found.culprit.place]
    assert behind
    assert all(node.propagated_kind and not node.introduced_kind for node in behind)
    before = [node for node in found.nodes if node.place < found.culprit.place]
    assert not any(node.propagated_kind or node.introduced_kind for node in before)


@pytest.mark.slow
def test_a_failure_that_needs_fusion_is_said_to(pool, backends):
    found = torchparity.locate(case_of(backends.hides), pool=pool)
    assert found.how == "fusion"
    assert {node.operation for node in found.fusion} >= {"sin"}
    assert found.culprit is not None
    assert found.culprit.place >= min(node.place for node in found.fusion)


def test_an_operation_that_the_compiler_refuses_is_found_by_halves(pool, backends):
    found = torchparity.locate(case_of(backends.refuses_cosine), pool=pool)
    assert found.how == "raises"
    assert found.culprit is not None
    assert found.culprit.operation == "cos"
    assert found.compiles <= 6


@pytest.mark.filterwarnings("ignore::torchparity.CaptureWarning")
def test_what_only_the_model_refuses_is_told_as_that(pool):
    def model(x):
        return torch.nn.functional.smooth_l1_loss(x.sin(), x, beta=-1.0) + 1.0

    (case, *_) = torchparity.capture(model, (torch.randn(4),), backend="aot_eager_decomp_partition")
    found = torchparity.locate(case, pool=pool)
    assert (found.how, found.kind, found.compiles) == ("refused", "accepts_invalid", 1)
    assert found.culprit is not None
    assert found.culprit.operation == "smooth_l1_loss"


def test_a_wrong_gradient_is_found_among_operations_by_themselves(pool, backends):
    case = case_of(backends.wrong_backwards, level="dynamo", backward=True)
    found = torchparity.locate(case, pool=pool)
    assert found.how == "gradient"
    assert found.culprit is not None
    assert found.culprit.operation == "tanh"


def test_a_gradient_that_is_wrong_only_among_others_is_found_where_it_begins(pool, backends):
    case = case_of(backends.wrong_together, level="dynamo", backward=True)
    found = torchparity.locate(case, pool=pool)
    assert found.how == "gradient"
    assert found.culprit is not None
    assert found.culprit.operation == "tanh"


def test_a_case_that_does_not_fail_is_refused(pool):
    with pytest.raises(torchparity.UsageError, match="does not fail here: same"):
        torchparity.locate(case_of("aot_eager"), pool=pool)


def test_what_is_written_to_later_is_tapped_as_it_was(tmp_path):
    def model(x):
        y = x + 1
        z = y.exp()
        y.mul_(3.0)
        return z + y

    (case, *_) = torchparity.capture(model, (torch.randn(4),), backend="eager")
    introduced = {}
    bench = Bench({"folder": str(write_bundle(case, tmp_path / "case"))})
    verdict = tap(bench, [], introduced, bench.settings(lambda event: None))
    assert verdict.status is torchparity.Status.SAME
    assert {entry["status"] for entry in introduced.values()} == {"same"}


def test_a_lost_write_is_found_where_it_is_lost(pool):
    def model(x):
        y = torch.sin(x) * 2.0
        torch.nn.functional.dropout(y, 0.5, training=False).add_(1.0)
        return torch.cos(y)

    (case, *_) = torchparity.capture(model, (torch.randn(4, 3),), backend="aot_eager_decomp_partition")
    found = torchparity.locate(case, pool=pool)
    assert found.compiles == 1
    assert found.culprit is not None
    assert found.culprit.operation == "add_"
    assert not found.others


def small_case(case, function, word):
    """Return a case that says it comes from the line of another case with a word in it."""
    (small,) = (entry for entry in torchparity.capture(function, (torch.randn(3),)) if entry.level == case.level)
    line = next(line for line in case.origin["nodes"] if word in line)
    return replace(small, origin={**small.origin, "nodes": [line] * small.compute_nodes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "function", "word", "compiles"),
    [
        ("refuses_cosine", torch.cos, "torch.cos", 4),
        ("hides", lambda x: torch.sin(x) + 1.0, "torch.sin", 2),
    ],
)
def test_a_small_graph_of_the_same_failure_shows_where_to_look(
    pool, backends, backend, function, word, compiles, tmp_path
):
    case = case_of(getattr(backends, backend))
    search = Search(write_bundle(case, tmp_path / "case"), pool, limits=Limits())
    assert search.at_once() is None
    found = search.closely(write_bundle(small_case(case, function, word), tmp_path / "small"))
    assert found.compiles <= compiles
    alone = torchparity.locate(case, pool=pool)
    assert found.how == alone.how
    named = {node.place for node in (found.culprit, *found.fusion)}
    assert named == {node.place for node in alone.fusion or [alone.culprit]}
    assert found.compiles < alone.compiles


@pytest.mark.parametrize(
    ("low", "high", "count", "cuts"),
    [(0, 9, 2, [3, 6]), (0, 2, 2, [1]), (3, 5, 1, [4]), (0, 2, 8, [1]), (10, 14, 2, [11, 12])],
)
def test_a_range_is_cut_into_equal_parts(low, high, count, cuts):
    assert cuts_between(low, high, count) == cuts


def test_inputs_with_strides_of_their_own_are_not_rounded():
    (case, *_) = torchparity.capture(lambda x: x.exp(), (torch.randn(4, 6)[:, ::2],), backend="eager")
    extractor = opened_graph(open_case(case))
    apart = extractor.apart(extractor.compute)
    before = len(apart.part.graph_module.graph.nodes)
    after = rounding_inputs(apart.part.graph_module, apart.part.inputs)
    assert len(after.graph.nodes) in (before, before + 1)
    assert torch.equal(after(*apart.part.inputs)[0], apart.part.inputs[0].exp())


@pytest.mark.slow
def test_of_two_wrong_operations_the_one_that_reaches_an_output_is_named(tmp_path):
    """Both are wrong on purpose; only one error arrives. Where, stage and script name the same operation."""

    def model(x, w):
        h = x @ w
        mask = torch.log1p(h.abs() * 1e6 + 0.5) > -1.0
        out = torch.relu(h * 1e-3)
        return torch.where(mask, out, out * 2).sum(-1)

    torch.manual_seed(0)
    inputs = (torch.randn(16, 32), torch.randn(32, 32))
    config = {f"inductor.cpp.inject_{name}_bug_TESTING_ONLY": "accuracy" for name in ("relu", "log1p")}
    found = torchparity.diagnose(model, inputs, config=config, out=tmp_path / "run")
    assert found.located is not None and found.located.culprit is not None
    assert found.located.culprit.operation == "relu"
    assert found.located.culprit.leads is True
    assert [(node.operation, node.leads) for node in found.located.others] == [("log1p", False)]
    assert found.smallest is not None and "relu" in found.smallest.script
    assert found.blame is not None and "relu" in (found.blame.part or "")
