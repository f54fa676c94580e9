import torch
import torch._inductor.config
torch._inductor.config.cpp.simdlen = 1

def program(a):
    return a.abs().amin()

def run(wrap):
    x = torch.ones(2).to(torch.int8)
    return wrap(program)(x)

run(lambda function: function)
run(torch.compile)
