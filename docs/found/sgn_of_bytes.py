import torch


def program(a):
    return torch.minimum(a, a.sgn())


program(torch.arange(1).to(torch.int8))
torch.compile(program)(torch.arange(1).to(torch.int8))
