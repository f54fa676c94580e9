import torch

def program(a):
    r = a.logcumsumexp(0)
    r.set_(a)
    a.t_()
    return r

def run(wrap):
    return wrap(program)(torch.ones(2, 1))

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
