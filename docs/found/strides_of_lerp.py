import torch
def program(a):
    return a.relu().lerp_(a.logcumsumexp(0), 0.5)

a = torch.ones(2, 2).mT
expected, actual = program(a).stride(), torch.compile(program)(a).stride()
torch.testing.assert_close(actual, expected)
