import torch
def program(a):
    r = torch.arange(a.shape[0])
    return r.logical_not_()

program(torch.ones(16))
torch.compile(program)(torch.ones(16))
