import torch
def program(a):
    a.polygamma_(0)
    return a

program(torch.ones(1))
torch.compile(program)(torch.ones(1))
