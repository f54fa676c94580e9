import torch
def program(a):
    r = a.select_scatter(a.select(1, 0), 1, 0)
    r.add_(a)
    return r

a = torch.ones(3, 1)[::2]
expected, actual = program(a).stride(), torch.compile(program)(a).stride()
torch.testing.assert_close(actual, expected)
