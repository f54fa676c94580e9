import torch


def program(a):
    return torch.linalg.vector_norm(a, -1, -1)


a = torch.ones(0, 1)
torch.testing.assert_close(torch.compile(program)(a), program(a))
