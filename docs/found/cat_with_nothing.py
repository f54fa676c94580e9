import torch
def program(a, b):
    return torch.cat([a, b], dim=-2)

def run(wrap):
    b = torch.ones(1, 2, 2, 1).permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    return wrap(program)(torch.ones(0), b).stride()

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
