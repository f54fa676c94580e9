"""Collectives and shards under the modes, in a group of one: what each rank does for itself."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from torchparity import Status, check, torchapi
from torchparity.compare.leaves import parts_of
from torchparity.run.bank import NoiseBank
from torchparity.run.noise import Noise
from torchparity.run.reference import Reference
from torchparity.run.state import ModelState


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_reference_takes_part_in_a_collective():
    values = torch.full((3,), 1 / 3)
    reference = Reference()
    with reference:
        third = values * 0.1
        dist.all_reduce(third)
        gathered = torch.empty(3)
        dist.all_gather_into_tensor(gathered, third)
    wanted = values.double() * 0.1
    for tensor in (third, gathered):
        found = reference.value(tensor)
        assert found is not None and torch.equal(found, wanted)
        assert not torch.equal(tensor.double(), wanted)


def test_the_copy_that_gloo_makes_again_leaves_the_shadow_alone():
    reference = Reference()
    with reference:
        whole = torch.full((4,), 1 / 3) * 0.1
        part = torch.empty(4)
        work = dist.reduce_scatter_tensor(part, whole, async_op=True)
        work.wait()
    found = reference.value(part)
    assert found is not None
    assert not torch.equal(part.double(), found)


def test_noise_goes_through_a_collective():
    values = torch.rand(100)
    noise = Noise(NoiseBank(1), run=1, amplitude=1.0, replay=[])
    with noise:
        moved = values * 1.1
        before = moved.clone()
        dist.all_reduce(moved)
    assert not torch.equal(before, values * 1.1)
    assert torch.equal(before, moved)


def test_a_wrapper_is_taken_apart_and_its_parts_are_seen():
    mesh = init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.rand(4, 3), mesh, [Shard(0)])
    reference = Reference()
    with reference:
        result = (sharded * 0.1).sin()
    local = torchapi.local_part(result)
    assert reference.shadows.has(local)
    assert [name for name, _ in parts_of(result)] == ["._local_tensor"]
    jagged = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged)
    with Noise(NoiseBank(1), run=1, amplitude=1.0, replay=[]):
        noisy = (jagged * 1.1).sin()
    assert not torch.equal(noisy.values(), (jagged * 1.1).sin().values())


def sharded_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    fully_shard(model[0])
    return fully_shard(model)


def test_a_sharded_model_is_put_back_also_where_a_forward_pass_left_it_whole():
    model = sharded_model()
    state = ModelState(model)
    before = {name: torchapi.local_part(tensor).clone() for name, _, tensor in state.named()}
    for _ in range(2):
        model(torch.rand(2, 4))
        with torch.no_grad():
            for parameter in model.parameters():
                torchapi.local_part(parameter).add_(1)
        state.restore()
        assert all(torch.equal(before[name], torchapi.local_part(tensor)) for name, _, tensor in state.named())


@pytest.mark.parametrize("train", [False, True])
def test_a_sharded_model_is_checked_shard_by_shard(train):
    verdict = check(sharded_model(), (torch.rand(3, 4),), backend="aot_eager", train=train, allow_eager=True)
    assert verdict.status is Status.SAME, verdict.reasons
    gradients = [leaf for leaf in verdict.leaves if leaf.role == "gradient"]
    assert len(gradients) == (4 if train else 0)
    assert all(leaf.has_reference for leaf in gradients)


def test_gradients_in_one_bucket_keep_their_reference():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3), gradient_as_bucket_view=True)
    verdict = check(model, (torch.rand(7, 5),), backend="eager", train=True, allow_eager=True)
    gradients = [leaf for leaf in verdict.leaves if leaf.role == "gradient"]
    assert verdict.status is Status.SAME
    assert len(gradients) == 2
    assert all(leaf.has_reference and leaf.eager_error > 0 for leaf in gradients)
