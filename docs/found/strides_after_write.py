import torch
def program(a):
    a.tril_()
    return 0 + a

def run(wrap):
    x = torch.ones(1, 2, 1, 2).to(memory_format=torch.channels_last)
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
