import torch
def program(a):
    return a % a

def run(wrap):
    x = (torch.arange(2) * 0 - 1).to(torch.int32)
    return wrap(program)(x)

run(lambda function: function)
run(torch.compile)
