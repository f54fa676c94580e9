import torch

def program(a):
    r = torch.nn.functional.threshold(a, 0, 0)
    r.cumsum_(0)
    return r

def run(wrap):
    return wrap(program)(torch.ones(1, 2, 1, 2).to(memory_format=torch.channels_last)).stride()

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
