"""A device that is lost to its process, faked at our own seam: after the first error every use of it fails."""

import sys

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

ERROR = "CUDA error: device-side assert triggered"
PRINTED = (
    "/tmp/cache/ab/cabcd.py:31: unknown: block: [0,0,0], thread: [3,0,0] "
    "Assertion `index out of bounds: 0 <= tmp4 < 5` failed."
)


def fails(*args, **kwargs):
    raise torch.AcceleratorError(ERROR)


def lose():
    """Lose the device, as the driver does: whoever asks anything of it hears of the same error again."""
    from torchparity import torchapi
    from torchparity.run.state import ModelState

    torchapi.device_lost = lambda device: True
    for name in ("restore", "release"):
        setattr(ModelState, name, fails)


def asserts_on_cosine(graph_module, inputs):
    if not any("aten.cos." in str(node.target) for node in graph_module.graph.nodes):
        return make_boxed_func(graph_module.forward)

    def run(args):
        print(PRINTED, file=sys.stderr)
        lose()
        fails()

    run._boxed_call = True
    return run


asserting = aot_autograd(fw_compiler=asserts_on_cosine)
