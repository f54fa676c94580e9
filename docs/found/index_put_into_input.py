import torch


def program(a):
    r = a.view(torch.int16)
    return r.index_put((torch.tensor([0]),), r[0] + 2)


a = torch.ones(2, dtype=torch.float64)
torch.compile(program)(a)
torch.testing.assert_close(a, torch.ones(2, dtype=torch.float64), rtol=0, atol=0)
