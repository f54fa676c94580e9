import torch
def program(x, a, b):
    return x + a + b

def run(wrap):
    a, b = (torch.ones(16).bfloat16().requires_grad_() for _ in range(2))
    wrap(program)(torch.ones(16, 16).bfloat16(), a, b).sum().backward()

run(lambda function: function)
run(torch.compile)
