import torch
def program(a):
    r3 = a.topk(1).values
    r4 = torch.combinations(a)
    r3.index_add_(0, torch.tensor([0]), a)
    r6 = r3.repeat_interleave(1)
    r3.add_(1.5)
    return r6

def run(wrap):
    return wrap(program)(torch.ones(1))

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
