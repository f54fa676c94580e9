import torch
def program(a):
    r = torch.tanh(a)
    r.set_(a)
    a.add_(1)
    return r

def run(wrap):
    a = torch.zeros(1)
    wrap(program)(a).add_(1)
    return a

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
