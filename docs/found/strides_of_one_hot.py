import torch
def program(b):
    return torch.nn.functional.one_hot(b.nonzero() % 1, 1)

def run(wrap):
    x = torch.ones(1, 2)
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
