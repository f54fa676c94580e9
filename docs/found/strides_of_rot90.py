import torch
def program(a):
    r = a.rot90(1, (2, 0))
    r.index_add_(0, torch.tensor([0]), r.index_select(0, torch.tensor(0)))
    return r

a = torch.ones(1, 2, 2)
expected, actual = program(a).stride(), torch.compile(program)(a).stride()
torch.testing.assert_close(actual, expected)
