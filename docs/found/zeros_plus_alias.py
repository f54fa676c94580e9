import torch
def program(a):
    return torch.zeros_like(a) + a

def run(wrap):
    a = torch.arange(3)
    wrap(program)(a).add_(1)
    return a

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
