import torch


def program(b):
    return torch.complex(b.permute((1, 0)), b).conj().imag

def run(wrap):
    x = torch.ones(2, 2)
    results = wrap(program)(x)
    results = results if isinstance(results, tuple) else (results,)
    return [part.stride() for part in results]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
