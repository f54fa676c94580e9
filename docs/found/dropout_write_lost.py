import torch
def program(a):
    torch.nn.functional.dropout(a, training=False).add_(1)
    return a

def run(wrap):
    torch.manual_seed(0)
    x = torch.arange(1).to(torch.float32)
    wrap(program)(x)
    return [x]

expected, actual = run(lambda function: function), run(lambda function: torch.compile(function, dynamic=True))
torch.testing.assert_close(actual, expected)
