import torch
def program(a):
    return a.clone().tril_()

a = torch.ones(2, 2).mT
expected, actual = program(a).stride(), torch.compile(program)(a).stride()
torch.testing.assert_close(actual, expected)
