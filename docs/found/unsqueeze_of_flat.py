import torch

def program(b):
    b.flatten().unsqueeze_(0)

def run(wrap):
    return wrap(program)(torch.ones(0))

run(lambda function: function)
run(torch.compile)
