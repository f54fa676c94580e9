"""Planted faults: each kind changes something, where it was told to, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from torchparity import UsageError
from torchparity.faults import KINDS, plant

DEADLY = ("hang", "segfault", "exits")


class Everything(nn.Module):
    """A model in which every kind of fault finds a place."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("count", torch.zeros(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, tokens):
        self.calls += 1
        x = torch.relu(self.linear(self.embedding(tokens)))
        x = nn.functional.gelu(self.norm(x)) - x.mean(-1, keepdim=True)
        self.count += x.detach().sum(0)
        return x, (tokens * 2).sum()


def run(backend, where):
    torch.manual_seed(0)
    model = Everything()
    torch.compiler.reset()
    output, number = torch.compile(model, backend=backend)(torch.arange(8))
    tangent = torch.linspace(-1, 1, 64).reshape(8, 8)
    if output.shape == tangent.shape and output.dtype == tangent.dtype:
        output.backward(tangent)
    gradients = [parameter.grad for parameter in model.parameters()]
    return [output.detach(), number, model.count, model.calls, *gradients], output.stride()


def test_there_are_at_least_25_kinds():
    assert len(KINDS) >= 25
    assert all(fault.summary for fault in KINDS.values())


@pytest.fixture(scope="module")
def clean():
    return run("aot_eager", "forward")


def changes(kind, clean):
    """Tell whether a fault changes something at one of the first places that it finds."""
    for where in ("forward", "backward"):
        for site in range(12):
            backend = plant(kind, where=where, site=site)
            try:
                found, stride = run(backend, where)
            except Exception as error:
                assert "planted" in str(error) or kind.startswith("wrong_"), error
                return True
            if backend.planted is None:
                break
            different = any(
                left is not None
                and (right is None or left.shape != right.shape or left.dtype != right.dtype or not left.equal(right))
                for left, right in zip(clean[0], found, strict=True)
            )
            if different or stride != clean[1]:
                return True
    return False


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DEADLY])
def test_every_kind_changes_something(kind, clean):
    assert changes(kind, clean), f"{kind} never changed anything"


def test_a_site_that_is_not_there_plants_nothing():
    backend = plant("scale", site=10_000)
    clean, _ = run("aot_eager", "forward")
    found, _ = run(backend, "forward")
    assert backend.planted is None
    assert backend.sites
    assert all(left.equal(right) for left, right in zip(clean, found, strict=True) if left is not None)


def test_a_graph_compiled_again_has_its_fault_again():
    backend = plant("scale_percent", site=0)
    first, _ = run(backend, "forward")
    second, _ = run(backend, "forward")
    assert first[0].equal(second[0])
    assert not first[0].equal(run("aot_eager", "forward")[0][0])


def test_site_none_only_counts():
    backend = plant("scale", site=None)
    run(backend, "forward")
    assert backend.planted is None
    assert len(backend.sites) > 3


@pytest.mark.parametrize(("kind", "code"), [("segfault", -11), ("exits", 3)])
def test_deadly_kinds_really_kill(kind, code):
    script = (
        "import torch; from torchparity.faults import plant;"
        f"torch.compile(torch.sin, backend=plant({kind!r}))(torch.ones(2))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == code


def test_a_hang_really_hangs():
    script = (
        "import torch; from torchparity.faults import plant;"
        "torch.compile(torch.sin, backend=plant('hang', site=None))(torch.ones(2)); print('warm', flush=True);"
        "torch.compiler.reset(); torch.compile(torch.sin, backend=plant('hang'))(torch.ones(2))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "warm\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=5)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("scael",), "no fault named 'scael'"), (("scale",), "cannot stand in 'sideways'")],
)
def test_wrong_questions(arguments, message):
    options = {"where": "sideways"} if arguments == ("scale",) else {}
    with pytest.raises(UsageError, match=message):
        plant(*arguments, **options)
