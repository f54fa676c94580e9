import torch
def program(a):
    return a.any()

def run(wrap):
    x = torch.arange(0).to(torch.uint8)
    return wrap(program)(x)

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
