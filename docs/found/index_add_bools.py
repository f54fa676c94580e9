import torch
def program(a):
    return a.index_add(1, torch.tensor([0, 0]), a.index_select(1, torch.tensor([0, 0])), alpha=0)

def run(wrap):
    x = (torch.arange(0) == 0).view(0, 1)
    wrap(program)(x)

run(lambda function: function)
run(torch.compile)
