import torch
def program(a):
    a.unfold(0, 1, 2).add_(1)

def run(wrap):
    x = torch.ones(2)
    wrap(program)(x)
    return [x]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
