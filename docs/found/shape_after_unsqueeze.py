import torch
def program(a):
    r0 = a.abs()
    r0.unsqueeze_(0)
    return r0.shape

def run(wrap):
    x = torch.arange(0)
    return wrap(program)(x)

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
