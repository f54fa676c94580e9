import torch
def program(a):
    return torch.tensor(1) * a

def run(wrap):
    x = torch.arange(1).expand(2)
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(lambda function: torch.compile(function, dynamic=True))
torch.testing.assert_close(actual, expected)
