import torch
def program(a, b, c):
    r0 = a.addbmm_(b, c)

def run(wrap):
    x = torch.arange(0).to(torch.float32)
    y = torch.ones(5, 0, 5)
    z = torch.ones(5, 5, 0)
    return wrap(program)(x, y, z)

run(lambda function: function)
run(torch.compile)
