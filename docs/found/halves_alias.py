import torch
def program(a):
    return a.repeat_interleave(2).tensor_split(2)

def run(wrap):
    one, other = wrap(program)(torch.arange(1).expand(2))
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()

expected, actual = run(lambda function: function), run(lambda function: torch.compile(function, dynamic=True))
torch.testing.assert_close(actual, expected)
