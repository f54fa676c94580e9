import torch
def program(a):
    a.permute((1, 0)).scatter_(0, torch.zeros_like(a), 0)
    return a.flip(0)

a = torch.arange(4).view(2, 2)
expected, actual = program(a).stride(), torch.compile(program)(a).stride()
torch.testing.assert_close(actual, expected)
