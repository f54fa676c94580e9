import torch
def program(a, q, v):
    return torch.nn.functional.scaled_dot_product_attention(q, a[:, :, [0]].transpose(1, 2), v)

def run(wrap):
    torch.manual_seed(0)
    a, q, v = torch.randn(2, 2, 2, 2).requires_grad_(), torch.randn(2, 2, 2, 2), torch.randn(2, 1, 2, 2)
    wrap(program)(a, q, v).square().sum().backward()
    return a.grad

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
