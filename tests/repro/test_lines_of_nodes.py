"""The source line of a node: the user's own, and the library's that it leads to."""

from __future__ import annotations

import rich
import torch
from torch.fx import Graph

from torchparity.report.findings import short_line
from torchparity.repro.names import line_of

OWN = 'File "/home/me/model.py", line 3, in forward\n    return self.net(x) if x.dim() > 1 else x\n'
LIBRARY = f'File "{rich.__file__}", line 9, in act\n    return self.act(x)\n'
TORCH = f'File "{torch.__file__}", line 5, in relu\n    return relu(x)\n'


def line(*frames: str) -> str:
    node = Graph().placeholder("x")
    node.meta["stack_trace"] = "".join(frames)
    return line_of(node)


def test_the_users_line_is_told_and_the_librarys_that_it_leads_to() -> None:
    own = "/home/me/model.py:3 in forward: return self.net(x) if x.dim() > 1 else x"
    assert line(OWN, TORCH) == own
    assert line(LIBRARY, OWN, TORCH) == own
    assert line(LIBRARY, TORCH) == f"{rich.__file__}:9 in act: return self.act(x)"
    both = line(OWN, LIBRARY, TORCH)
    assert both == f"{own}, through {rich.__file__}:9 in act: return self.act(x)"
    shown = "model.py:3 in forward: return self.net(x) if x.dim() > 1 else x"
    assert short_line(both) == f"{shown}, through __init__.py:9 in act: return self.act(x)"
    assert line(TORCH).endswith("in relu: return relu(x)")
    assert (line(), short_line("")) == ("", "")
