import torch

from torchparity.observe.program import ProgramTracer
from torchparity.repro.names import line_of, operations
from torchparity.repro.opening import open_case
from torchparity.request import Request
from torchparity.run.subject import Subject
from torchparity.verbs.capture import captured_program


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        y = torch.sin(self.linear(x))
        return y.sum()


def test_a_models_own_calls_know_the_line_that_they_stand_at():
    case = captured_program(Subject(Model(), (torch.ones(2, 3),)), Request(backend="eager"))
    opened = open_case(case)
    nodes = operations(opened.graph(opened.make()[0]))
    assert [(node.name, line_of(node).partition(": ")[2]) for node in nodes] == [
        ("linear", "y = torch.sin(self.linear(x))"),
        ("sin", "y = torch.sin(self.linear(x))"),
        ("sum_1", "return y.sum()"),
    ]
    assert all("test_program.py" in line_of(node) for node in nodes)


def test_what_was_taken_from_torchs_defaults_is_written_down():
    """Nobody sets the model's default device or dtype where its graph is judged."""

    def model(x):
        return x + torch.full((3,), 0.5) + torch.tensor(1.5) + torch.arange(3) + torch.ones(3, dtype=torch.float32)

    torch.set_default_dtype(torch.float64)
    try:
        case = captured_program(Subject(model, (torch.ones(3),)), Request(backend="eager"))
    finally:
        torch.set_default_dtype(torch.float32)
    opened = open_case(case)
    made, inputs, _ = opened.make()
    nodes = {node.name: node.kwargs for node in operations(opened.graph(made))}
    assert nodes["full"]["dtype"] is nodes["tensor"]["dtype"] is torch.float64
    assert "dtype" not in nodes["arange"]
    assert nodes["ones"] == {"dtype": torch.float32}
    assert made(*inputs)[0].dtype is torch.float64


def test_what_was_made_on_the_default_device_says_so():
    tracer = ProgramTracer()
    with torch.device("meta"), tracer:
        made = torch.zeros(2) + torch.as_tensor([1.0, 2.0]) + torch.ones(2, device="meta")
    graph = tracer.finished(made).graph
    assert {node.name: str(node.kwargs["device"]) for node in graph.nodes if "device" in node.kwargs} == {
        "zeros": "meta",
        "as_tensor": "meta",
        "ones": "meta",
    }
