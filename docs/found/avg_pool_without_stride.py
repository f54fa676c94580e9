import torch
def program(a):
    return torch.nn.functional.avg_pool2d(a, 1, (), (0,))

def run(wrap):
    a = torch.ones(1, 1, 1).requires_grad_()
    wrap(program)(a).sum().backward()

run(lambda function: function)
run(torch.compile)
