import torch

numbers = torch.arange(66.0)
torch.testing.assert_close(torch.compile(torch.prod)(numbers), numbers.prod())
