import collections
import torch
queue = collections.deque(maxlen=2)
def program(a):
    queue.extend([1, 2])
    queue.append(3)
    return a + len(queue)

def run(wrap):
    queue.clear()
    return wrap(program)(torch.zeros(1))

expected, actual = run(lambda function: function), run(torch.compile)
torch.testing.assert_close(actual, expected)
