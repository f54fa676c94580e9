import torch

from torchparity.judge.cases import load_case
from torchparity.verbs.watching import capture_program
from torchparity.repro.source import line_of, operations
from torchparity.run.subject import Subject


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        y = torch.sin(self.linear(x))
        return y.sum()


def test_a_models_own_calls_know_the_line_that_they_stand_at():
    how = {"train": False, "backward": None, "autocast": None, "seed": 0}
    case = capture_program(Subject(Model(), (torch.ones(2, 3),)), backend="eager", **how)
    loaded = load_case(case)
    nodes = operations(loaded.graph_of(loaded.make()[0]))
    assert [(node.name, line_of(node).partition(": ")[2]) for node in nodes] == [
        ("linear", "y = torch.sin(self.linear(x))"),
        ("sin", "y = torch.sin(self.linear(x))"),
        ("sum_1", "return y.sum()"),
    ]
    assert all("test_program.py" in line_of(node) for node in nodes)
