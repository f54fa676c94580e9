import torch
def program(a, c):
    a.lerp_(c, 0.5)

def run(wrap):
    x = torch.ones(1, 1, 1, 2).to(memory_format=torch.channels_last)
    y = torch.arange(1).to(torch.float32)
    return wrap(program)(x, y)

run(lambda function: function)
run(torch.compile)
