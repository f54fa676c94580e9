import torch
def program(a):
    r0 = a != a
    r0.scatter_(0, torch.zeros_like(a), 0)
    return r0

def run(wrap):
    x = torch.arange(4).view(2, 2).mT
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
