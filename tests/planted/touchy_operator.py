"""An operator whose eager kernel takes its process along, and a compiler that is wrong beside it: fixture `touchy`."""

import ctypes
import os
import time

import torch

# How the process ends: the environment says it, so that workers know too.
ENDS = {
    "segfault": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(3600),
    "exit": lambda: os._exit(3),
}


@torch.library.custom_op("planted::touchy", mutates_args=())
def touchy(x: torch.Tensor) -> torch.Tensor:
    """Return three times a tensor; end the process where it has fewer than four rows, or a number over fifty."""
    if "TOUCHY" in os.environ and (x.shape[0] < 4 or bool((x > 50).any())):
        ENDS[os.environ["TOUCHY"]]()
    return x * 3


@touchy.register_fake
def _(x):
    return torch.empty_like(x)


def wrong_beside_touchy(graph_module, inputs, **options):
    """Give results that are too large where the operator stands in the graph."""
    touched = any("touchy" in str(node.target) for node in graph_module.graph.nodes if node.op == "call_function")
    return lambda *args: tuple(value * 60 if touched else value for value in graph_module(*args))


class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.sin(x) + 1.0
        y = touchy(torch.tanh(y))
        return torch.cos(y) * 2.0
