import torch
def program(a):
    return torch.nn.functional.avg_pool1d(a, 2, ceil_mode=True)

def run(wrap):
    a = torch.ones(1, 1).requires_grad_()
    wrap(program)(a).sum().backward()
    return a.grad

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
