import torch

def program(a):
    a.unfold(0, 3, 3).lerp_(a.kthvalue(1).values, 0.5)

def run(wrap):
    x = torch.ones(3, 3, 3)
    return wrap(program)(x)

import os, signal
run(lambda function: function)
if os.fork() == 0:
    for _ in range(30):
        run(torch.compile)
    os._exit(0)
status = os.wait()[1]
assert status == 0, signal.Signals(status & 127).name
