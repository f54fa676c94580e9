"""Sweeps on a real Ray cluster of three nodes on this machine: nodes and the driver are killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import torchparity
from torchparity.fleet.store import query

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
# So many cells; the figures of docs/design/sweep.md are with 300.
CELLS = int(os.environ.get("TORCHPARITY_CELLS", "24"))
MODELS = """
import torch
from torch._dynamo import register_backend


@register_backend(name="sometimes_wrong")
def sometimes_wrong(graph_module, inputs, **options):
    wrong = inputs[0].shape[-1] % 5 == 0
    return (lambda *arguments: tuple(value + 1 for value in graph_module(*arguments))) if wrong else graph_module


def make(width):
    return torch.nn.ReLU(), (torch.ones(2, width),)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    widths = list(range(1, CELLS + 1))
    (tmp_path / "suite.toml").write_text(
        f'[[target]]\nof = "models.py:make"\nparameters = {{ width = {widths} }}\nbackend = "sometimes_wrong"\n'
    )
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(3):
        made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def begin(address, *words):
    command = [sys.executable, "-m", "torchparity", "sweep", *words, "--ray", address]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for(process, cells):
    """Wait until so many cells more are told."""
    for _ in range(cells):
        assert process.stderr.readline().startswith("[")


def kill_a_node(cluster):
    """Kill the processes of a node, as if its machine had lost its power; another comes in its place."""
    node = next(node for node in cluster.worker_nodes)
    for processes in list(node.all_processes.values()):
        for info in processes:
            os.kill(info.process.pid, signal.SIGKILL)
    cluster.worker_nodes.discard(node)
    cluster.add_node(num_cpus=1)


def test_nodes_and_the_driver_die_and_every_cell_has_one_verdict(cluster, tmp_path):
    part = CELLS // 6
    driver = begin(cluster.address, "suite.toml", "--out", "out")
    wait_for(driver, part)
    kill_a_node(cluster)
    wait_for(driver, part)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert 2 * part <= query(tmp_path / "out", "select count(status) from cells")[1][0][0] < CELLS
    driver = begin(cluster.address, "--resume", "out")
    wait_for(driver, part)
    kill_a_node(cluster)
    _, told = driver.communicate()
    assert driver.returncode == 1, told
    counts = "select count(*), count(distinct key), count(status) from cells"
    assert query(tmp_path / "out", counts)[1] == [(CELLS, CELLS, CELLS)]
    began = time.monotonic()
    torchparity.sweep("suite.toml", out="local", workers=2)
    said = "select title, status, kind from cells order by title"
    assert query(tmp_path / "out", said) == query(tmp_path / "local", said)
    print(f"{CELLS} cells here, two workers: {time.monotonic() - began:.1f} s")


def test_a_node_that_is_not_like_the_driver_is_refused(cluster, monkeypatch):
    monkeypatch.setattr("torchparity.run.environment.__version__", "9.9.9")
    with pytest.raises(torchparity.ResourceError, match="a node is not like the driver"):
        torchparity.sweep("suite.toml", out="out", ray=cluster.address)


def test_no_cluster_is_told():
    with pytest.raises(torchparity.ResourceError, match="there is no Ray cluster"):
        torchparity.sweep(ready="torchvision", out="out", ray="127.0.0.1:1")


BROKEN = """
import torch


def model(x, y):
    h = torch.relu(x.float() @ y) + 1
    k = (7 % x) * 2
    return h.sin() + h.cos(), k + 1


def make():
    return model, (torch.full((5, 5), 5), torch.ones(5, 3))
"""


def test_minify_asks_a_cluster_and_finds_the_same(cluster, tmp_path):
    """A real bug of torch 2.13 (an integer remainder raises); a node dies on the way."""
    (tmp_path / "broken.py").write_text(BROKEN)
    verdict = torchparity.check(torchparity.Target("broken.py:make"))
    if verdict.status is not torchparity.Status.DIFFERS:
        pytest.skip("this torch computes the remainder rightly")
    here = torchparity.minify(torchparity.Target("broken.py:make"), out="here")
    command = [sys.executable, "-m", "torchparity", "minify", "broken.py:make", "--out", "there", "--ray"]
    asking = subprocess.Popen([*command, cluster.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("there/queries/*")) and asking.poll() is None:
        time.sleep(0.05)
    kill_a_node(cluster)
    told, errors = asking.communicate(timeout=600)
    assert asking.returncode == 0, errors
    assert "3 of 3" in told
    assert (tmp_path / "there" / "repro.py").read_text() == (tmp_path / "here" / "repro.py").read_text()
    assert here.case.compute_nodes == 1
