import torch
def program(a):
    return a.cumsum(0).unfold(0, 2, 1)

def run(wrap):
    x = torch.ones(3).requires_grad_()
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    sum((part * torch.arange(part.numel()).view(part.shape)).sum() for part in results if part.requires_grad).backward()
    return [given.grad for given in [x] if given.grad is not None]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
