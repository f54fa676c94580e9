import torch
def program(v, g):
    return torch._weight_norm(v, g, 0)

def run(wrap):
    v = torch.ones(4, 3).half().requires_grad_()
    g = torch.ones(4, 1).half().requires_grad_()
    wrap(program)(v, g).sum().backward()

run(lambda function: function)
run(torch.compile)
