"""Operations looked at by themselves: in as many compilations as there are workers for, with one answer."""

from __future__ import annotations

import itertools
import re
import threading

import pytest
import torch

import torchparity
from torchparity.minifier.chase import Budget, Chase
from torchparity.minifier.gate import Gate
from torchparity.minifier.log import NAME, Log
from torchparity.minifier.reduction import reduce_part
from torchparity.minifier.signature import Answer, Signature
from torchparity.minifier.suspects import PIECE, wrong_alone

OPERATIONS = 2 * PIECE + 4


class Chain(torch.nn.Module):
    """Operations that differ in a number."""

    def forward(self, x):
        for place in range(OPERATIONS):
            x = x + 0.25 * place
        return x


@pytest.fixture(scope="module")
def case():
    (case, *_) = torchparity.capture(Chain(), (torch.randn(4, 6),), backend="aot_eager")
    return case


def chase_of(case, folder, judge, *, width, free):
    folder.mkdir(exist_ok=True)
    return Chase(
        case,
        judge,
        folder=folder / "queries",
        log=Log(folder / NAME),
        width=width,
        budget=Budget(),
        looks_inside=True,
        free=free,
    )


def judge_of(*wrong):
    """Return a judge for which these are wrong, the last named the worst."""

    def judge(path):
        added = [float(number) for number in re.findall(r"= \w+ \+ ([\d.]+)", (path / "repro.py").read_text())]
        found = sorted((wrong.index(number), place) for place, number in enumerate(added) if number in wrong)
        paths = tuple((f"output[{place}]", "value") for _, place in reversed(found))
        return Answer(signatures=(Signature(kind="value"),), wrong=paths) if paths else Answer(same=True)

    return judge


@pytest.mark.parametrize(("width", "free", "queries"), [(1, 1, 1), (2, 1, 1), (2, 2, 2), (8, 8, 2), (1, 2, 2)])
def test_every_free_worker_looks_at_a_piece(case, tmp_path, width, free, queries):
    chase = chase_of(case, tmp_path, judge_of(1.5, 4.25), width=width, free=free)
    names = [(node.args[1], kind) for node, kind in wrong_alone(chase, chase.extractor)]
    assert sorted(names) == [(1.5, "value"), (4.25, "value")]
    assert chase.queries == queries
    chase.end()


def test_each_piece_names_its_worst_first(case, tmp_path):
    chase = chase_of(case, tmp_path, judge_of(0.5, 1.0, 1.25, 1.5), width=2, free=2)
    places = [int(node.args[1] / 0.25) for node, _ in wrong_alone(chase, chase.extractor)]
    assert places == [6, 5, 4, 2]
    chase.end()


def test_what_comes_and_goes_is_no_suspect(case, tmp_path):
    def judge(path):
        return Answer(signatures=(Signature(kind="value"),), wrong=(("output[0]", "value"),), repeats=(1, 3))

    chase = chase_of(case, tmp_path, judge, width=2, free=2)
    assert wrong_alone(chase, chase.extractor) == []
    chase.end()


def test_the_plainest_form_of_a_suspect_is_asked_beside_it(case, tmp_path):
    both_asked = threading.Barrier(2, timeout=60)
    numbers = itertools.count()

    def judge(path):
        if next(numbers) < 2:
            both_asked.wait()  # Breaks where nobody asks the second before the first is answered.
        return judge_of(1.5)(path)

    chase = chase_of(case, tmp_path, judge, width=2, free=2)
    chase.signature, chase.settled = Signature(kind="value"), True
    gate = Gate(chase)
    suspect = next(node for node in chase.extractor.compute if node.args[1] == 1.5)
    reduce_part(gate, chase.extractor, lambda extractor: [[suspect]])
    chase.end()
    assert gate.current.compute_nodes == 1
    assert gate.current.inputs[0].numel() == 1


def test_what_was_asked_ahead_and_passes_is_kept_as_passing(case, tmp_path):
    chase = chase_of(case, tmp_path, judge_of(1.5), width=2, free=2)
    chase.signature, chase.settled = Signature(kind="value"), True
    gate = Gate(chase)
    nodes = {node.args[1]: node for node in chase.extractor.compute}
    wrong, right = chase.extractor.part([nodes[1.5]]), chase.extractor.part([nodes[2.0]])
    gate.ahead(right)
    assert gate.fails(wrong)
    assert not gate.fails(right)
    assert not gate.fails(right)
    assert [part.key for part in gate.passing] == [right.key]
    chase.end()
