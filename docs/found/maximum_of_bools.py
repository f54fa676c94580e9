import torch
def program(a):
    r = torch.ones_like(a, dtype=torch.bool)
    return torch.maximum(r, r)

program(torch.ones(2, 2).mT)
torch.compile(program)(torch.ones(2, 2).mT)
