import torch

def program(a):
    return a % 0.1

x = torch.arange(16) * 12345.0 + 7
expected, actual = program(x), torch.compile(program)(x)
torch.testing.assert_close(actual, expected)
