import torch

def program(a):
    a.swapaxes_(0, 1)
    return 0 ** a

def run(wrap):
    return wrap(program)(torch.arange(4).view(2, 2))

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
