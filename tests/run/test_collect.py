"""What a run leaves behind, compared with what was there."""

from __future__ import annotations

import pytest
import torch

from torchparity.run.collect import unchanged


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_nested_inputs_are_compared_part_by_part(layout):
    def nested(last):
        return torch.nested.nested_tensor([torch.ones(2), torch.tensor([1.0, last, 3.0])], layout=layout)

    assert unchanged(nested(2.0), nested(2.0))
    assert not unchanged(nested(2.0), nested(2.5))
