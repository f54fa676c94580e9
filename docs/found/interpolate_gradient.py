import torch

def program(c):
    return torch.nn.functional.interpolate(c, size=(2, 1))

def run(wrap):
    x = torch.ones(1, 1, 1, 1).requires_grad_()
    wrap(program)(x).sum().backward()
    return x.grad

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
