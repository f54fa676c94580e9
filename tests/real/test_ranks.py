"""Two real ranks under a real torchrun: they agree, disagree, die and hang, and end with one code and the words."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from torchparity.cli.main import app
from torchparity.errors import UsageError

MODEL = """
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torchparity import torchapi

RANK = int(os.environ["RANK"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x))).sin()


class Split(Net):
    def forward(self, x):
        x = self.first(x)
        x = x.relu() if RANK == 1 else x.tanh()
        return self.second(x)


def inputs(rows=6):
    torch.manual_seed(RANK)
    return (torch.randn(rows, 8),)


def ddp():  # Makes no group: the check does.
    return DistributedDataParallel(Net()), inputs()


def shapes():
    dist.init_process_group("gloo")
    return DistributedDataParallel(Net()), inputs(rows=6 - RANK)


def split():
    return DistributedDataParallel(Split()), inputs()


def fsdp():
    dist.init_process_group("gloo")
    model = Net()
    fully_shard(model.first)
    fully_shard(model)
    return model, inputs()


def broken():
    dist.init_process_group("gloo")
    if RANK == 1:
        raise ValueError("no data here")
    return DistributedDataParallel(Net()), inputs()


def on_rank_one(action):
    def backend(graph_module, inputs):
        def run(*args):
            if RANK == 1:
                return action(graph_module, args)
            return graph_module(*args)

        return run

    return backend


def scaled(values):
    return tuple(value * 1.01 if isinstance(value, torch.Tensor) else value for value in values)


calls = []


def now_and_then(graph_module, args):
    calls.append(1)
    return scaled(graph_module(*args)) if len(calls) % 2 else graph_module(*args)


def wrong_backward(graph_module, inputs):
    def run(*args):
        return scaled(graph_module(*args)) if RANK == 1 else graph_module(*args)

    return torchapi.boxed(run)


def only_backward(graph_module, inputs):
    build = torchapi.aot_backend(forward=lambda graph, inputs: torchapi.boxed(graph), backward=wrong_backward)
    return build(graph_module, inputs)


def refuse(graph_module, args):
    raise RuntimeError("no such kernel")


BACKENDS = {
    "wrong": on_rank_one(lambda graph_module, args: scaled(graph_module(*args))),
    "wrong_backward": only_backward,
    "flaky": on_rank_one(now_and_then),
    "killed": on_rank_one(lambda graph_module, args: os.kill(os.getpid(), 9)),
    "hanging": on_rank_one(lambda graph_module, args: time.sleep(1000)),
    "raising": on_rank_one(refuse),
}
for name, backend in BACKENDS.items():
    torch._dynamo.register_backend(name=name)(backend)


@torch._dynamo.register_backend(name="killed_0")
def killed_0(graph_module, inputs):
    def run(*args):
        if RANK == 0:
            os.kill(os.getpid(), 9)
        return graph_module(*args)

    return run
"""


class Done:
    def __init__(self, done, seconds):
        self.words = done.stdout
        self.errors = done.stderr
        self.seconds = seconds
        # torchrun prints how each worker ended, by local rank; nothing where all ended with 0.
        found = re.findall(r"local_rank: (\d)\)\s+exitcode  : (-?\d+)", done.stderr)
        self.codes = {int(rank): int(code) for rank, code in found} if found else {0: 0, 1: 0}
        self.code = done.returncode


@pytest.fixture
def torchrun(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL)

    def run(target, *words):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["-m", "torchparity", "check", f"my_model.py:{target}", "--quiet", *words]
        started = time.monotonic()
        without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # Two ranks on one would need another backend.
        done = subprocess.run(command, cwd=tmp_path, env=without_gpu, capture_output=True, text=True, timeout=120)
        return Done(done, time.monotonic() - started)

    return run


def test_ranks_that_agree(torchrun, tmp_path):
    done = torchrun("ddp", "--train", "--backend", "aot_eager", "--json", "out.json")
    assert done.code == 0, done.errors
    assert done.words.startswith("SAME  ddp on 2 ranks")
    assert done.words.count("SAME") == 2, "rank 0 alone speaks"
    assert re.search(r"^ +1 +same", done.words, re.MULTILINE)
    data = json.loads((tmp_path / "out.json").read_text())
    assert [rank["status"] for rank in data["ranks"]] == ["same", "same"]
    gradients = [leaf for leaf in data["leaves"] if leaf["role"] == "gradient"]
    assert gradients
    # The float64 reference takes part in the averaging: else eager's own error would be as large as a gradient.
    assert all(0 < leaf["eager_error"] < 1e-5 and leaf["has_reference"] for leaf in gradients)


@pytest.mark.slow
def test_ranks_that_agree_with_fully_shard(torchrun, tmp_path):
    done = torchrun(
        "fsdp", "--train", "--steps", "1", "--optimizer", "adamw", "--backend", "aot_eager", "--json", "out.json"
    )
    assert done.code == 0, done.errors
    assert done.words.startswith("SAME  fsdp on 2 ranks")
    data = json.loads((tmp_path / "out.json").read_text())
    assert not any("without a float64 reference" in reason for reason in data["reasons"])
    gradients = {leaf["path"]: leaf for leaf in data["leaves"] if leaf["role"] == "gradient"}
    assert gradients["grad.first.weight"]["shape"] == [8, 8], "each rank compares its own shard"
    assert all(0 < leaf["eager_error"] < 1e-5 for leaf in gradients.values())


@pytest.mark.slow
def test_ranks_with_different_shapes(torchrun):
    done = torchrun("shapes", "--backend", "aot_eager")
    assert done.codes == {0: 1, 1: 1}, done.errors
    assert done.words.startswith("DIFFERS  shapes on 2 ranks")
    assert "rank 1 and rank 0 do not compile the same: in graph 1 at l_x_" in done.words
    assert "rank 1 has input float32[5, 8] cpu, rank 0 has input float32[6, 8] cpu" in done.words


@pytest.mark.slow
def test_one_rank_with_other_numbers(torchrun):
    """The backward of rank 1 is wrong, and its gradients are averaged: still it is rank 1 that is named."""
    done = torchrun("ddp", "--train", "--backend", "wrong_backward")
    assert done.codes == {0: 1, 1: 1}, done.errors
    assert done.words.startswith("DIFFERS  ddp on 2 ranks")
    assert "rank 1 differs in gradients, before the ranks average them" in done.words
    assert re.search(r"^ +0 +differs +grad\.\S+ +value +\S+ +same", done.words, re.MULTILINE)
    assert re.search(r"^ +1 +differs +grad\.\S+ +value +\S+ +differs", done.words, re.MULTILINE)


@pytest.mark.slow
def test_one_rank_is_killed(torchrun):
    done = torchrun("ddp", "--train", "--backend", "killed", "--rank-timeout", "30")
    assert done.codes == {0: 125, 1: -9}, done.errors
    assert done.words.startswith("UNKNOWN  the ranks did not get to the end")
    assert re.search(r"rank 1 died( \(signal 9\))? in 'killed 1'", done.words)
    assert "rank 0 " in done.words
    assert done.seconds < 30, "nobody waits for the limit"


def test_one_rank_hangs(torchrun):
    done = torchrun("ddp", "--train", "--backend", "hanging", "--rank-timeout", "10")
    assert done.codes == {0: 125, 1: 125}, done.errors
    assert done.words.startswith("UNKNOWN  the ranks did not get to the end")
    assert "rank 1 has not answered for 10 s: it is in 'hanging 1', at my_model.py:" in done.words
    assert done.seconds < 60


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--isolate"], "--isolate and torchrun do not go together"),
        (["--rank-timeout", "0"], "0 s leave the ranks no time"),
    ],
)
def test_what_cannot_be_asked_of_ranks(monkeypatch, tmp_path, words, message):
    (tmp_path / "my_model.py").touch()
    monkeypatch.chdir(tmp_path)
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        app(["check", "my_model.py:make", *words], standalone_mode=False)


@pytest.mark.slow
def test_one_rank_hangs_where_none_waits_for_it(torchrun):
    done = torchrun("ddp", "--backend", "hanging", "--rank-timeout", "10")
    assert done.codes == {0: 125, 1: 125}, done.errors
    assert "rank 1 has not answered for 10 s: it is in 'hanging 1', at my_model.py:" in done.words
    assert "rank 0 waited for the others after 'hanging 1'" in done.words


@pytest.mark.slow
def test_rank_0_is_killed_and_rank_1_speaks(torchrun):
    done = torchrun("ddp", "--train", "--backend", "killed_0", "--rank-timeout", "30")
    assert done.codes == {0: -9, 1: 125}, done.errors
    assert re.search(r"rank 0 died( \(signal 9\))? in 'killed_0 1'", done.words)


@pytest.mark.slow
def test_outputs_of_one_rank_are_wrong(torchrun):
    done = torchrun("ddp", "--train", "--backend", "wrong")
    assert done.codes == {0: 1, 1: 1}, done.errors
    assert "rank 1 differs before anything is shared" in done.words
    assert re.search(r"^ +1 +differs +output +value", done.words, re.MULTILINE)


@pytest.mark.slow
def test_ranks_run_equally_often_where_one_is_flaky(torchrun):
    done = torchrun("ddp", "--train", "--backend", "flaky")
    assert done.codes == {0: 1, 1: 1}, done.errors
    assert "it differs in 3 of 5 runs" in done.words


@pytest.mark.slow
def test_one_rank_raises_and_the_other_waits_in_a_collective(torchrun):
    done = torchrun("ddp", "--train", "--backend", "raising")
    assert done.codes == {0: 1, 1: 1}, done.errors
    assert done.words.startswith("DIFFERS  the ranks did not get to the end")
    assert "rank 1 failed, and the others wait for it: RuntimeError: no such kernel" in done.words


@pytest.mark.slow
def test_one_rank_cannot_load_its_model(torchrun):
    done = torchrun("broken", "--rank-timeout", "5")
    assert done.codes == {0: 125, 1: 125}, done.errors
    assert "rank 1 failed, and the others wait for it: broken() raises ValueError: no data here" in done.words


@pytest.mark.slow
def test_ranks_with_different_graphs(torchrun):
    done = torchrun("split", "--backend", "aot_eager")
    assert done.codes == {0: 1, 1: 1}, done.errors
    assert re.search(r"in graph 1 at \w+ \(my_model.py:\d+ in forward\) rank 1 has relu\(%5\)", done.words)
    assert torchrun("split", "--backend", "aot_eager", "--different-graphs").code == 0


@pytest.mark.slow
def test_inductor_on_two_ranks(torchrun):
    for target in ("ddp", "fsdp"):
        done = torchrun(target, "--train", "--backend", "inductor")
        assert done.code == 0, done.errors
        assert done.words.startswith(f"SAME  {target} on 2 ranks")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "killed_0"])
def test_ranks_without_an_agent(torchrun, tmp_path, backend):
    """Started by hand, rank 0 serves the store, and takes it along where it dies."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "torchparity", "check", "my_model.py:ddp", "--backend", backend, "--quiet"]
    place = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(command, cwd=tmp_path, env={**place, "RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    words = [rank.communicate(timeout=120)[0] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    if backend == "aot_eager":
        assert codes == [0, 0]
        assert words[0].startswith("SAME  ddp on 2 ranks")
        assert words[1] == ""
    else:
        assert codes == [-9, 125]
        assert "rank 0 died" in words[1] or "the store that the ranks talk through is gone" in words[1]
