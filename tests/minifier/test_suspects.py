"""Operations looked at by themselves: in as many compilations as there are workers for, with one answer."""

from __future__ import annotations

import itertools
import re
import threading

import pytest
import torch
from tests.minifier.judges import questions_of, whole_of

import torchparity
from torchparity.minifier.answers import Answer
from torchparity.minifier.gate import Gate
from torchparity.minifier.questions import Following, Whole
from torchparity.minifier.reduction import Suspicion, reduce_part
from torchparity.minifier.suspects import PIECE, Hint, suspicions, wrong_alone
from torchparity.records import Signature

OPERATIONS = 2 * PIECE + 4
VALUE = Signature(kind="value")


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


def judge_of(*wrong):
    """Return a judge for which these are wrong, the last named the worst."""

    def judge(path):
        added = [float(number) for number in re.findall(r"= \w+ \+ ([\d.]+)", (path / "repro.py").read_text())]
        found = sorted((wrong.index(number), place) for place, number in enumerate(added) if number in wrong)
        paths = tuple((f"output[{place}]", "value") for _, place in reversed(found))
        return Answer(signatures=(VALUE,), wrong=paths) if paths else Answer(same=True)

    return judge


@pytest.mark.parametrize(("width", "free", "queries"), [(1, 1, 1), (2, 1, 1), (2, 2, 2), (8, 8, 2), (1, 2, 2)])
def test_every_free_worker_looks_at_a_piece(case, tmp_path, width, free, queries):
    asked = questions_of(case, tmp_path, judge_of(1.5, 4.25), width=width)
    names = [(node.args[1], kind) for node, kind in wrong_alone(asked, asked.workshop.extractor, free)]
    assert sorted(names) == [(1.5, "value"), (4.25, "value")]
    assert asked.queries == queries


def test_each_piece_names_its_worst_first(case, tmp_path):
    asked = questions_of(case, tmp_path, judge_of(0.5, 1.0, 1.25, 1.5), width=2)
    places = [int(node.args[1] / 0.25) for node, _ in wrong_alone(asked, asked.workshop.extractor, 2)]
    assert places == [6, 5, 4, 2]


def test_what_comes_and_goes_is_no_suspect(case, tmp_path):
    def judge(path):
        return Answer(signatures=(VALUE,), wrong=(("output[0]", "value"),), repeats=(1, 3))

    asked = questions_of(case, tmp_path, judge, width=2)
    assert wrong_alone(asked, asked.workshop.extractor, 2) == []


def test_the_plainest_form_of_a_suspect_is_asked_beside_it(case, tmp_path):
    both_asked = threading.Barrier(2, timeout=60)
    numbers = itertools.count()

    def judge(path):
        if next(numbers) < 2:
            both_asked.wait()  # Breaks where nobody asks the second before the first is answered.
        return judge_of(1.5)(path)

    asked = questions_of(case, tmp_path, judge, width=2)
    extractor, follower = asked.workshop.extractor, Following(asked, VALUE)
    gate = Gate(follower)
    suspect = next(node for node in extractor.compute if node.args[1] == 1.5)
    reduce_part(gate, extractor, [Suspicion(nodes=[suspect], asker=follower)])
    assert gate.current.compute_nodes == 1
    assert gate.current.inputs[0].numel() == 1


def test_what_was_asked_ahead_and_passes_is_kept_as_passing(case, tmp_path):
    asked = questions_of(case, tmp_path, judge_of(1.5), width=2)
    gate, extractor = Gate(Following(asked, VALUE)), asked.workshop.extractor
    nodes = {node.args[1]: node for node in extractor.compute}
    wrong, right = extractor.part([nodes[1.5]]), extractor.part([nodes[2.0]])
    gate.ahead(right)
    assert gate.fails(wrong)
    assert not gate.fails(right)
    assert not gate.fails(right)
    assert [part.key for part in gate.passing] == [right.key]


def test_one_that_is_wrong_alone_is_found_before_the_whole_case_has_answered(case, tmp_path):
    whole_may_answer = threading.Event()

    def judge(path):
        if path.name == "00001":  # The whole case, which is asked about first.
            whole_may_answer.wait(60)
        return judge_of(1.5)(path)

    asked = questions_of(case, tmp_path, judge, width=2)
    whole = whole_of(asked, looks_inside=True)
    found = next(suspicions(whole, 1))
    assert not whole.settled
    whole_may_answer.set()
    assert [node.args[1] for node in found.nodes] == [1.5]
    assert found.asker.signature == VALUE
    assert whole.follower().signature == VALUE


def hint_of(extractor, number, *, waited, **facts):
    """Return a hint at the operation that adds a number, and write down how it was asked for."""
    (place,) = [place for place, node in enumerate(extractor.compute) if node.args[1] == number]
    told = {"place": place, "name": extractor.compute[place].name, "kind": "value", "introduced": True, **facts}

    def ask(wait):
        waited.append(wait)
        return told

    return Hint(ask)


def known_to_fail(asked):
    return Whole(asked, known=Answer(signatures=(VALUE,)), looks_inside=True)


def test_what_somebody_has_found_already_is_asked_about_first_and_nobody_waits_for_it(case, tmp_path):
    asked, waited = questions_of(case, tmp_path, judge_of(1.5), width=2), []
    hint = hint_of(asked.workshop.extractor, 1.5, waited=waited)
    found = next(suspicions(known_to_fail(asked), 2, hint))
    assert [node.args[1] for node in found.nodes] == [1.5]
    assert (asked.queries, waited) == (0, [False])


@pytest.mark.parametrize("facts", [{"introduced": False}, {"kind": "stride"}, {"name": "another"}, {"place": 10**6}])
def test_a_hint_that_names_no_beginning_saves_no_question(case, tmp_path, facts):
    asked = questions_of(case, tmp_path, judge_of(1.5), width=2)
    hint = hint_of(asked.workshop.extractor, 2.0, waited=[], **facts)
    found = next(suspicions(known_to_fail(asked), 2, hint))
    assert [node.args[1] for node in found.nodes] == [1.5]
    assert asked.queries == 2


def test_a_hint_that_is_wrong_costs_one_question_and_the_plainest_form_of_it(case, tmp_path):
    asked = questions_of(case, tmp_path, judge_of(1.5), width=2)
    extractor = asked.workshop.extractor
    gate = Gate(Following(asked, VALUE))
    reduce_part(gate, extractor, suspicions(known_to_fail(asked), 2, hint_of(extractor, 2.0, waited=[])))
    assert [node.args[1] for node in gate.current.graph_module.graph.nodes if node.op == "call_function"] == [1.5]
    assert gate.current.compute_nodes == 1
