import torch
def program(c):
    c.expand(*c.shape).as_strided((0,), (0,)).add_(0)

def run(wrap):
    x = torch.arange(0)
    wrap(program)(x)

run(lambda function: function)
run(torch.compile)
