import torch

def program(a):
    r = a * 1
    flat, index = r.reshape(-1), torch.tensor([0])
    stacked = torch.stack([r, flat])
    r.index_add_(0, index, r.index_select(0, index).clone())
    return stacked, flat

a = torch.ones(2)
torch.testing.assert_close(torch.compile(program)(a), program(a))
