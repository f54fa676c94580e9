import torch
def program(a):
    r0 = a.to(torch.int64)
    r1 = r0.reshape(1)
    r3 = a if a else a
    r0.add_(0)
    r6 = r1.argmax()
    return r0.view(torch.int64)

def run(wrap):
    x = torch.ones(1, 1)
    wrap(program)(x)

run(lambda function: function)
run(torch.compile)
