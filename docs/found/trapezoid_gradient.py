import torch
def program(a, b):
    r = torch.trapezoid(a, b)
    b.neg_()
    return r

def run(wrap):
    a = torch.ones(3, 4).requires_grad_()
    wrap(program)(a, torch.arange(4.0)).sum().backward()
    return a.grad

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
