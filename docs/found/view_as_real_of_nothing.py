import torch

def program(a):
    r1 = torch.view_as_real(torch.complex(a, a))
    return (r1.detach(), r1)

def run(wrap):
    x = torch.arange(0).to(torch.float16).requires_grad_()
    return wrap(program)(x)

run(lambda function: function)
run(torch.compile)
