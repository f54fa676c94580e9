import torch

def program(a):
    r = a.select_scatter(a.select(0, 0), 0, 0)
    a.as_strided((1,), (0,), 1).add_(0)
    return r.narrow(0, 0, 0)

def run(wrap):
    a = torch.arange(3)[::2]
    wrap(program)(a)
    return a

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
