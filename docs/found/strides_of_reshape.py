import torch
def program(a):
    a.abs_()
    return a.reshape(-1)

def run(wrap):
    x = torch.arange(3)[::2]
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(lambda function: torch.compile(function, dynamic=True))
torch.testing.assert_close(actual, expected)
