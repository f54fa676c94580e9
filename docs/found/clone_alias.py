import torch
def program(b):
    b.index_add_(0, torch.tensor([0]), b.index_select(0, torch.tensor(0)))
    return b.clone()

def run(wrap):
    b = torch.arange(3)
    wrap(program)(b).add_(1)
    return b

expected, actual = run(lambda function: function), run(lambda function: torch.compile(function, dynamic=True))
torch.testing.assert_close(actual, expected)
