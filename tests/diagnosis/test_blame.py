"""Blame: the ladder and the halving on backends without a code generator, then real inductor, wrong at one stage."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

import torchparity
from torchparity.diagnosis.blame import Inquiry, operator_of
from torchparity.diagnosis.halving import fewest
from torchparity.diagnosis.switches import SWITCHES, settings_in, turned, usable
from torchparity.faults.stages import wrong_stage
from torchparity.judge.script import write_bundle
from torchparity.records import Failure, Status, Trial, Verdict
from torchparity.records.wire import plain_data
from torchparity.request import request_for
from torchparity.workers.outcome import Ending, Limits, Outcome
from torchparity.workers.pool import Pool


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)

    def forward(self, x):
        y = torch.relu(self.linear(self.norm(x)))
        return torch.softmax(torch.tanh(torch.nn.functional.gelu(y + x)), -1)


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=1) as workers:
        yield workers


def case_of(backend):
    torch.manual_seed(0)
    return torchparity.capture(Net(), (torch.randn(8, 64),), backend=backend)[0]


def found_by(candidates, attempt):
    return fewest(candidates, attempt, lambda trial: trial.status is Status.DIFFERS and trial.kind == "value")


class Told:
    """A pool whose answers are told beforehand: a status for each backend, and for nothing changed."""

    def __init__(self, **answers):
        self.answers = answers

    def submit(self, job, payload, *, limits):
        status = self.answers[payload.get("backend", "plain")]
        ending = Ending.TIMED_OUT if status is Status.UNKNOWN else Ending.RETURNED
        failure = Failure(type="E", message="", stage="run") if status is Status.DIFFERS else None
        verdict = plain_data(Verdict(status=status, reasons=("told",), failure=failure))
        future = Future()
        future.set_result(Outcome(ending=ending, value={"verdict": verdict}))
        return future


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bundle(case_of("inductor"), tmp_path_factory.mktemp("blame") / "case")


SAME, DIFFERS, UNKNOWN = Status.SAME, Status.DIFFERS, Status.UNKNOWN


@pytest.mark.parametrize(
    ("decomposed", "plain", "eager", "stage"),
    [
        (DIFFERS, DIFFERS, DIFFERS, "dynamo"),
        (DIFFERS, DIFFERS, UNKNOWN, "aot_autograd"),
        (DIFFERS, UNKNOWN, DIFFERS, "dynamo"),
        (DIFFERS, UNKNOWN, UNKNOWN, "aot_autograd"),
    ],
)
def test_no_answer_accuses_nobody_and_is_counted(folder, decomposed, plain, eager, stage):
    pool = Told(plain=DIFFERS, aot_eager_decomp_partition=decomposed, aot_eager=plain, eager=eager)
    found = Inquiry(folder, pool, limits=Limits()).run()
    assert found.stage == stage
    assert found.passing is None
    assert found.unanswered == [decomposed, plain, eager].count(UNKNOWN)


def test_a_case_without_an_answer_is_no_failure(folder):
    with pytest.raises(torchparity.UsageError, match="does not fail here: unknown"):
        Inquiry(folder, Told(plain=UNKNOWN), limits=Limits()).run()


@pytest.mark.parametrize("guilty", [0, 1, 13, 30, 31])
def test_one_of_many_is_found_in_about_log_runs(guilty):
    asked = []

    def attempt(chosen):
        asked.append(chosen)
        right = guilty in chosen
        return Trial(change="", status=Status.SAME if right else Status.DIFFERS, kind="" if right else "value")

    found = found_by(list(range(32)), attempt)
    assert found is not None
    assert found[0] == [guilty]
    assert found[1].status is Status.SAME
    assert len(asked) <= 7


def test_two_that_are_needed_together_are_found_together():
    def attempt(chosen):
        right = {3, 12} <= set(chosen)
        return Trial(change="", status=Status.SAME if right else Status.DIFFERS, kind="" if right else "value")

    found = found_by(list(range(16)), attempt)
    assert found is not None
    assert sorted(found[0]) == [3, 12]


def test_a_change_that_breaks_the_compiler_tells_nothing():
    def attempt(chosen):
        if len(chosen) > 2:
            return Trial(change="", status=Status.DIFFERS, kind="raises")
        right = 5 in chosen
        return Trial(change="", status=Status.SAME if right else Status.DIFFERS, kind="" if right else "value")

    found = found_by(list(range(8)), attempt)
    assert found is not None
    assert found[0] == [5]


def test_nobody_is_blamed_where_nothing_helps():
    found = found_by([1, 2, 3], lambda chosen: Trial(change="", status=Status.DIFFERS, kind="value"))
    assert found is None


def test_every_switch_is_known_to_this_torch_or_left_out():
    known = {switch.key for switch in usable({})}
    assert "inductor.cpp.simdlen" in known
    assert len(known) >= 12
    assert "inductor.cpp.simdlen" not in {switch.key for switch in usable({"inductor.cpp.simdlen": 1})}
    assert len({switch.key for switch in SWITCHES}) == len(SWITCHES)


MODES = [{"mode": "max-autotune"}, {"options": {"max_autotune": True}}]


@pytest.mark.parametrize("said", MODES, ids=["mode", "options"])
def test_what_a_mode_turns_on_is_a_switch_that_wins_over_it(said):
    request = request_for("check", {"config": {"functorch.cse": True, "inductor.freezing": True}, **said})
    assert "inductor.max_autotune" in {switch.key for switch in usable(settings_in(request))}
    assert "inductor.max_autotune" not in {switch.key for switch in usable(settings_in(request_for("check", {})))}

    changed = turned(request, {"inductor.max_autotune": False, "functorch.cse": False})
    assert not settings_in(changed)["inductor.max_autotune"]
    assert changed.config == {"functorch.cse": False, "inductor.freezing": True}

    model, x = torch.nn.Linear(64, 32).eval(), torch.randn(32, 64)
    as_it_is, otherwise = (
        torchparity.check(
            model, (x,), mode=one.mode, options=one.options, config=one.config, no_grad=True, fresh_cache=True
        )
        for one in (request, changed)
    )
    assert as_it_is.tuned
    assert not otherwise.tuned
    assert (as_it_is.status, otherwise.status) == (Status.SAME, Status.SAME)


def test_settings_for_all_are_changed_where_no_mode_says_more():
    request = request_for("check", {"config": {"inductor.max_fusion_size": 4}})
    assert turned(request, {"inductor.max_fusion_size": 1}).config == {"inductor.max_fusion_size": 1}
    assert turned(request, {"inductor.max_fusion_size": 1}).options == request.options


def test_an_operator_is_named_as_torch_names_it():
    assert operator_of(("decomposition", "<OpOverload(op='aten.gelu', overload='default')>", 0)) == "aten.gelu.default"


def test_a_backend_of_ones_own_is_blamed_with_the_operation(pool):
    def model(x):
        return torch.nn.functional.gelu(torch.tanh(x)) + torch.exp(-x.abs())

    (case, *_) = torchparity.capture(model, (torch.randn(5),), backend=torchparity.faults.plant("wrong_gelu"))
    found = torchparity.blame(case, pool=pool)
    assert (found.stage, found.part) == ("backend", "gelu")
    assert found.passing is not None
    assert found.passing.status is Status.SAME
    assert found.queries <= 15


def test_a_case_that_does_not_fail_is_refused(pool):
    with pytest.raises(torchparity.UsageError, match="does not fail here"):
        torchparity.blame(case_of("aot_eager"), pool=pool)


STAGES = [
    ("decomposition", "gelu", "decomposition", "aten.gelu.default"),
    ("pre_grad", "relu", "pre_grad_passes", "pre_grad_custom_pass"),
    ("joint", "relu", "joint_graph_passes", "joint_custom_post_pass"),
    ("post_grad", "relu", "post_grad_passes", "post_grad_custom_pre_pass"),
    ("lowering", "tanh", "lowerings", "tanh"),
    ("codegen", "tanh", "codegen", "tanh"),
]


@pytest.mark.parametrize(
    ("planted", "operation", "stage", "part"),
    [pytest.param(*entry, marks=[] if entry[0] == "joint" else [pytest.mark.slow], id=entry[0]) for entry in STAGES],
)
def test_a_fault_at_a_stage_of_inductor_is_blamed_on_it(pool, planted, operation, stage, part):
    found = torchparity.blame(case_of(wrong_stage(planted, operation)), pool=pool)
    assert (found.stage, found.part) == (stage, part)
    assert found.queries <= 15
    assert found.failing is not None
    assert found.failing.status is Status.DIFFERS
    assert found.passing is not None
    assert found.passing.status is Status.SAME
    if planted == "codegen":
        assert found.switch == {"inductor.cpp.simdlen": 1}


def test_a_switch_is_tried_where_it_can_change_the_code():
    on_a_cpu, on_a_gpu = ({switch.key for switch in usable({}, device)} for device in ("cpu", "cuda"))

    assert not any(key.startswith("inductor.triton.") for key in on_a_cpu)
    assert not any(key.startswith("inductor.cpp.") for key in on_a_gpu)
    assert {"inductor.triton.persistent_reductions", "inductor.max_fusion_size"} <= on_a_gpu
