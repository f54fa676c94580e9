import torch
def program(a):
    return torch.kron(a, a).diagonal()

x = torch.ones(2, 2)
assert torch.compile(program)(x).stride() == program(x).stride()
