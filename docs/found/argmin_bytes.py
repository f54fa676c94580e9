import torch
def program(c):
    return c.argmin()

def run(wrap):
    x = torch.ones(4).to(torch.int8)
    return wrap(program)(x)

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
