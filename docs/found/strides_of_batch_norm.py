import torch

def program(a):
    return torch.nn.functional.batch_norm(a, None, None, training=True)

def run(wrap):
    return wrap(program)(torch.ones(2, 2).mT).stride()

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
