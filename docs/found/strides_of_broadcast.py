import torch
def program(a, b):
    return torch.fmax(a.to(memory_format=torch.channels_last), b)

def run(wrap):
    x = torch.ones(1, 5, 5, 1)
    y = torch.ones(5, 5, 1)
    results = wrap(program)(x, y)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
