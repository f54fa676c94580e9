import torch

def program(a, b):
    torch.add(b, 0, out=b)
    return a + 0

def run(wrap):
    a = torch.arange(1).to(torch.float16).requires_grad_()
    y = a.detach()
    wrap(program)(a, y)

run(lambda function: function)
run(torch.compile)
