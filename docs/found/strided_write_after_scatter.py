import torch

def program(a):
    r = a.select_scatter(a.select(0, 0), 0, 0)
    r.as_strided((1,), (0,), 0).add_(1)
    return r

def run(wrap):
    return wrap(program)(torch.arange(2)[1:])

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
