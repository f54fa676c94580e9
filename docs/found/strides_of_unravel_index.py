import torch
def program(a):
    return torch.unravel_index(a, (1, 1))[1]

a = torch.arange(4).view(2, 2).mT
expected, actual = program(a).stride(), torch.compile(program)(a).stride()
torch.testing.assert_close(actual, expected)
