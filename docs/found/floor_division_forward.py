import torch


def program(a):
    return a // 2


program(torch.ones(3, requires_grad=True))
torch.compile(program)(torch.ones(3, requires_grad=True))
