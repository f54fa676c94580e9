import torch
def program(a, b):
    r0 = b.as_strided((0,), (0,))
    a.index_fill_(0, torch.tensor(0), 0)

def run(wrap):
    a = torch.ones(2)
    y = a.detach()
    return wrap(program)(a, y)

run(lambda function: function)
run(lambda function: torch.compile(function, dynamic=True))
