import torch

def program(a, c):
    r = a.abs()
    s = a if c.sum() else a
    r.abs_()
    return a.norm()

def run(wrap):
    wrap(program)(torch.ones(1).requires_grad_(), torch.arange(0)).backward()

run(lambda function: function)
run(torch.compile)
