import torch
def program(c):
    c.unfold(0, 1, 1).add_(1)

def run(wrap):
    x = torch.ones(1, 2, 1, 2).to(memory_format=torch.channels_last)
    wrap(program)(x)
    return [x]

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
