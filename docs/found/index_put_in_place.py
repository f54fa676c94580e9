import torch


def program(a):
    r = a + 1
    return r.index_put((torch.tensor([0, 0]),), r, accumulate=True)


a = torch.zeros(1, dtype=torch.int8)
torch.testing.assert_close(torch.compile(program)(a), program(a))
