import torch

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
