import torch
def program(a):
    return torch.ones_like(a).cumsum(0, dtype=torch.int32)

expected, actual = program(torch.ones(0)), torch.compile(program)(torch.ones(0))
torch.testing.assert_close(actual, expected)
