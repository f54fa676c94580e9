import torch
def program(a):
    torch._foreach_add_([a.narrow(0, 0, 0)], 0)

def run(wrap):
    x = torch.ones(1).expand(2)
    wrap(program)(x)

run(lambda function: function)
run(lambda function: torch.compile(function, dynamic=True))
