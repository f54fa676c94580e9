import torch
def program(a):
    a.split(0)[0].fill_diagonal_(0)

def run(wrap):
    x = torch.ones(0, 0)
    return wrap(program)(x)

run(lambda function: function)
run(torch.compile)
