import os, torch
def program(a):
    return torch.add(a, a, alpha=-1)

x = torch.arange(4) % 2 == 0
expected = program(x)
if os.fork() == 0:
    os._exit(not torch.equal(torch.compile(program)(x), expected))
assert os.wait()[1] == 0, "other values, or a heap that is destroyed"
