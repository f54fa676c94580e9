import torch

def program(a):
    r2 = a.new_full((), 0.5)
    r2.unsqueeze_(0)
    r2.resize_(r2.shape)
    return r2

def run(wrap):
    x = torch.arange(0)
    return wrap(program)(x)

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
