import torch
def program(a):
    a.add_(1)
    return a

def run(wrap):
    x = torch.ones(()).to(torch.float64)
    wrap(program)(x)
    return [x]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
