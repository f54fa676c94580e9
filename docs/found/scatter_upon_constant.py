import torch


def program(index):
    return (torch.zeros(1, dtype=torch.float64).scatter(0, index, 0.3) - 0.3) * 1e3


index = torch.arange(1)
torch.testing.assert_close(torch.compile(program)(index), program(index))
