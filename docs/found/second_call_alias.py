import torch
def program(a, c):
    c.index_fill_(0, torch.tensor(0), 1)
    a.cumsum_(0)

def run(wrap):
    a, wrapped = torch.arange(2), wrap(program)
    wrapped(a, a.detach())
    wrapped(a, a.clone())
    return a

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
