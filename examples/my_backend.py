"""A torch.compile backend of one's own, with a mistake in it: `torchparity check examples/my_backend.py:make`."""

import torch
from torch._dynamo import register_backend
from torch.nn.functional import gelu


@register_backend
def fast_gelu(graph_module, inputs, **options):
    """Run the graph as it is, but with a cheaper gelu. The mistake: the cheaper one is only nearly the same."""
    for node in graph_module.graph.nodes:
        if node.target is gelu:
            node.kwargs = {**node.kwargs, "approximate": "tanh"}
    graph_module.recompile()
    return graph_module.forward


class Block(torch.nn.Module):
    """A feed-forward block of a transformer."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        """Return x with the block added to it."""
        return x + self.down(gelu(self.up(x)))


def make():
    """Return the model and its inputs."""
    torch.manual_seed(0)
    return Block(), (torch.randn(8, 64),)
