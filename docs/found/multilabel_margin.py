import torch
def program(c):
    return torch.nn.functional.multilabel_margin_loss(c, torch.arange(c.shape[0]) - 1)

def run(wrap):
    x = torch.ones(1)
    return wrap(program)(x)

expected, actual = run(lambda function: function), run(lambda function: torch.compile(function, dynamic=True))
torch.testing.assert_close(actual, expected)
