"""What no operation tells: memory that others write to, and operations that count from where a storage begins.

A reference that does not know of it is far from eager, and whatever lies between the two would pass.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

import torchparity
from torchparity import Status


def through_numpy(x):
    made = x * 1.1
    made.numpy()[1] = 55.5
    return made


def through_asarray(x):
    made = x * 1.1
    np.asarray(made)[2:4] = 55.5
    return made


def through_dlpack(x):
    made = x * 1.1
    torch.from_dlpack(made)[1] = 55.5
    return made


def through_bytes(x):
    made = x * 1.1
    made.untyped_storage().copy_((x * 2.0).contiguous().untyped_storage())
    return made


def through_pointer(x):
    made = torch.zeros_like(x)
    place = ctypes.cast(made.data_ptr(), ctypes.POINTER(ctypes.c_float))
    np.ctypeslib.as_array(place, (x.numel(),))[:] = 3.3
    return made


def through_integers(x):
    made = x * 1.1
    made.view(torch.int32).bitwise_and_(-65536)
    return made


def through_doubles(x):
    made = x * 1.1
    made.view(torch.float64).mul_(2.0)
    return made


def scattered(x):
    return x.as_strided_scatter(x[:1] * 3.1, (1,), (1,), 1)


def scattered_inside(x):
    return (x * 1.1)[2:].as_strided_scatter(torch.full((2,), 7.7), (2,), (3,), 3)


def copied(x):
    return torch.as_strided_copy(x, (3,), (2,), 1)


def copied_again(x):
    return torch.as_strided_copy(torch.as_strided_copy(x[1:], (4,), (2,), 2)[1:], (2,), (1,), 1)


WAYS = [
    through_numpy, through_asarray, through_dlpack, through_bytes, through_pointer, through_integers, through_doubles,
    scattered, scattered_inside, copied, copied_again,
]  # fmt: skip


def numbers(first):
    return torch.cat([torch.zeros(first), torch.arange(12.0) * 0.37 + 1.3])[first:]


@pytest.mark.parametrize("first", [0, 2], ids=["whole", "view"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_reference_is_where_eager_is(way, first):
    verdict = torchparity.check(way, (numbers(first),), backend="eager", allow_eager=True)
    assert verdict.status is Status.SAME, verdict.reasons
    errors = [leaf.eager_error for leaf in verdict.leaves if leaf.path.startswith("output")]
    assert errors
    assert max(errors) < 1e-5


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_candidate_between_eager_and_anything_is_seen(way):
    class Model(torch.nn.Module):
        def forward(self, x):
            return way(x) * 1.0

    def backend(graph_module, inputs):
        return lambda *args: tuple(value * 1.001 for value in graph_module(*args))

    verdict = torchparity.check(Model(), (numbers(2),), backend=backend)
    assert verdict.status is not Status.SAME, verdict.reasons


def test_what_torch_lends_is_put_back_as_it_was():
    before = {name: getattr(torch.Tensor, name) for name in ("numpy", "__array__", "__dlpack__", "data_ptr")}
    held = set(vars(torch.Tensor))
    torchparity.check(through_numpy, (numbers(0),), backend="eager", allow_eager=True)
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    assert set(vars(torch.Tensor)) == held


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("off", [0.0, 0.001], ids=["right", "wrong"])
def test_a_kernel_of_the_users_own_writes_unseen(off):
    from tests.run.own_kernel import doubled

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.compiler.disable(doubled)(x * 1.1) * 1.3

    def backend(graph_module, inputs):
        return lambda *args: tuple(value * (1.0 + off) for value in graph_module(*args))

    verdict = torchparity.check(Model(), (torch.randn(1000, device="cuda"),), backend=backend)
    assert verdict.status is (Status.DIFFERS if off else Status.SAME), verdict.reasons
    assert max(leaf.eager_error for leaf in verdict.leaves if leaf.path == "output") < 1e-5
