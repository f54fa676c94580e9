import torch


def run(wrap):
    x = torch.ones(2).requires_grad_()
    wrap(lambda a: torch.atan2(a, a).amax())(x).backward()
    return x.grad


torch.testing.assert_close(run(torch.compile), run(lambda function: function))
