import torch
def program(a):
    return torch.nn.functional.multi_margin_loss(a, torch.arange(a.shape[0]))

def run(wrap):
    a = torch.arange(4.0).view(2, 2).requires_grad_()
    wrap(program)(a).backward()
    return a.grad

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
