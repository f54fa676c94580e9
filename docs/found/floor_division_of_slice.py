import torch

def program(a):
    r = a // a
    r[1:].mul_(1)
    return r

def run(wrap):
    return wrap(program)(torch.arange(2) * 0 - 1)

run(lambda function: function)
run(torch.compile)
