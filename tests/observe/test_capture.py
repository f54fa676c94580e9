from __future__ import annotations

import pytest
import torch
from torch import nn

import torchparity
from torchparity import CaptureWarning
from torchparity.errors import TargetError, UsageError
from torchparity.observe.capture import Ambient, Recorder, random_states
from torchparity.repro.bundle import read_bundle
from torchparity.repro.names import is_operation, line_of, operations
from torchparity.repro.opening import open_case as load_case
from torchparity.repro.values import Symbol

LINEAR = nn.Linear(4, 3)


def names(cases):
    return [case.name for case in cases]


def test_training_gives_the_graph_of_dynamo_and_two_of_aot(tmp_path):
    def model(x):
        return LINEAR(x).relu()

    cases = torchparity.capture(model, (torch.randn(2, 4),), backend="aot_eager", train=True, out=tmp_path)
    assert names(cases) == ["001_dynamo", "002_forward_aot", "003_backward_aot"]
    assert [(case.level, case.direction, case.backward) for case in cases] == [
        ("dynamo", "both", True),
        ("aot", "forward", False),
        ("aot", "backward", False),
    ]
    assert [read_bundle(tmp_path / case.name).digest for case in cases] == [case.digest for case in cases]
    assert all(case.origin["lines"][0].endswith("in model") for case in cases)
    assert cases[0].environment["torch"] == str(torch.__version__)


def test_capture_leaves_model_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    torchparity.capture(model, (torch.randn(3, 4, generator=torch.Generator()),), backend="aot_eager", train=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_inductors_graphs_are_seen_even_if_it_has_compiled_them_before():
    x = torch.randn(2, 4)
    torch.compiler.reset()
    with torch.no_grad(), torch._inductor.config.patch(fallback_random=True):
        torch.compile(LINEAR)(x)
    for _ in range(2):
        assert names(torchparity.capture(LINEAR, (x,))) == ["001_dynamo", "002_forward_aot"]


def test_a_graph_break_is_told():
    def model(x):
        y = x.sin()
        print("", end="")
        return y.cos()

    first, _, second, _ = torchparity.capture(model, (torch.randn(3),), backend="aot_eager")
    assert first.origin["after"] is None
    assert first.origin["ends"]["line"].endswith("in model")
    assert second.origin["after"] == first.origin["ends"]


def test_later_calls_are_kept_where_asked_for():
    sets = [(torch.full((3,), float(number)),) for number in range(3)]
    cases = torchparity.capture(lambda x: x * 2, input_sets=sets, backend="aot_eager", calls=2)
    assert [(case.level, case.origin["call"]) for case in cases] == [
        ("dynamo", 1), ("aot", 1), ("dynamo", 2), ("aot", 2),
    ]  # fmt: skip
    assert len({case.digest for case in cases}) == 4


def test_symbols_follow_from_the_shapes_of_tensors():
    cases = torchparity.capture(
        lambda x: x.sum(0) * x.shape[0], (torch.randn(5, 2),), backend="aot_eager", dynamic=True
    )
    for case in cases:
        assert Symbol(value=5, expression=f"{case.inputs[-1][0]}.shape[0]") in dict(case.inputs).values()
        assert case.recipe.dynamic is True


def test_autocast_around_the_model_is_recorded_for_dynamos_graph_only():
    cases = torchparity.capture(LINEAR, (torch.randn(2, 4),), backend="aot_eager", autocast=torch.bfloat16)
    assert [case.autocast for case in cases] == [("cpu", "bfloat16"), None]
    assert Ambient.around([torch.ones(1)]).autocast is None


def test_random_states_are_those_of_the_moment():
    case = torchparity.capture(nn.Dropout(0.5), (torch.ones(8),), backend="aot_eager", train=True, seed=7)[0]
    torch.manual_seed(7)
    assert dict(case.random).keys() == {"cpu"}
    storage = case.storages[dict(case.random)["cpu"].storage]
    assert torch.equal(storage.data, random_states(torch.device("cpu"))["cpu"])


def test_what_cannot_be_written_is_a_warning_and_the_rest_is_kept():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

    def model(x, y):
        first = x * 2
        print("", end="")
        return first, y.sin()

    with pytest.warns(CaptureWarning, match="nested tensor") as caught:
        cases = torchparity.capture(model, (jagged, torch.ones(3)), backend="aot_eager")
    assert [str(warning.message).split(":")[0] for warning in caught] == ["001_dynamo", "002_forward_aot"]
    assert names(cases) == ["003_dynamo", "004_forward_aot"]


def test_a_bundle_that_cannot_be_written_is_a_warning_and_the_program_goes_on(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(CaptureWarning, match="the bundle was not written") as caught:
        cases = torchparity.capture(LINEAR, (torch.randn(2, 4),), backend="aot_eager", out=tmp_path / "file")
    assert names(cases) == ["001_dynamo", "002_forward_aot"]
    assert len(caught) == 2


def test_a_model_that_raises_before_any_graph_is_an_error():
    def model(x):
        raise ValueError("no such luck")

    with pytest.raises(TargetError, match=r"the model could not be captured: .*no such luck"):
        torchparity.capture(model, (torch.ones(1),), backend="aot_eager")


def test_no_calls_leave_nothing_to_capture():
    with pytest.raises(UsageError, match="0 calls leave nothing to capture"):
        torchparity.capture(LINEAR, (torch.ones(4),), calls=0)


def test_the_recorder_says_what_it_watches():
    assert Recorder(torchparity.Request(backend="aot_eager")).__name__ == "capture of aot_eager"


def test_a_graph_with_open_sizes_knows_its_lines_when_it_is_read_back():
    def model(x):
        return torch.sin(x).sum(-1) * 2

    (case, *_) = torchparity.capture(model, (torch.randn(5, 4),), backend="aot_eager", dynamic=True)
    loaded = load_case(case)
    graph_module = loaded.graph(loaded.make()[0])
    lines = [line_of(node) for node in operations(graph_module)]
    assert all(line.endswith("return torch.sin(x).sum(-1) * 2") for line in lines[-3:])


class Sliced(torch.nn.Module):
    """A slice of a list of modules is a new module, and torch counts those: in the graph, too."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for block in self.blocks[:2]:
            x = block(x)
        return x


def partly_without_gradients(x):
    with torch.no_grad():
        y = x.sin()
    return x * y


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    return y + 1


def made_inside(x):
    torch._check(x.shape[0] == 4)
    return x + torch.arange(4) + torch.zeros(4) + torch.rand(4)


@pytest.mark.parametrize(
    "model",
    [Sliced(), partly_without_gradients, in_autocast, made_inside],
    ids=["sliced", "no_grad", "autocast", "made"],
)
def test_every_operation_of_an_opened_case_has_its_line(model):
    case = torchparity.capture(model, (torch.randn(4, 4),), backend="eager")[0]
    opened = load_case(case)
    computing = [node for node in opened.graph(opened.make()[0]).graph.nodes if is_operation(node)]
    assert computing
    assert all("test_capture.py" in line_of(node) for node in computing)
