"""Who is blamed by name: the kernels that inductor has written for a case, and the user's lines in them."""

from __future__ import annotations

import pytest
import torch

import torchparity
from torchparity.diagnosis.generated import Generated, kernels_of, read_kernels, users_lines
from torchparity.faults.stages import wrong_stage
from torchparity.records import Kernel
from torchparity.workers.pool import Pool


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        y = torch.sigmoid(self.first(x))
        z = torch.cos(self.second(y))
        return z + 1


MADE = [
    Generated(name="one", nodes=(("add", "net.py:1 in forward: x + y"), ("relu", ""))),
    Generated(name="two", nodes=(("add_1", "net.py:2 in forward: y + x"), ("add_2", "net.py:2 in forward: y + x"))),
]


@pytest.mark.parametrize(
    ("names", "kernels"),
    [
        ({"add"}, (Kernel(name="one", lines=("net.py:1 in forward: x + y",)),)),
        ({"relu"}, (Kernel(name="one"),)),
        ({"add_1", "add_2"}, (Kernel(name="two", lines=("net.py:2 in forward: y + x",)),)),
        ({"add", "add_1"}, tuple(kernel for kernel in (MADE[0].of({"add"}), MADE[1].of({"add_1"})) if kernel)),
        ({"mul"}, ()),
        (set(), ()),
    ],
    ids=["line", "no line", "once", "two", "none", "nobody knows"],
)
def test_the_kernels_are_those_that_compute_what_is_blamed(names, kernels):
    assert kernels_of(MADE, names) == kernels


def test_a_kernel_is_named_once_and_eagers_own_only_where_there_is_no_other():
    called = [Generated(name="extern_kernels.mm", nodes=(("mm", line),)) for line in ("a", "b")]
    assert kernels_of(called, {"mm"}) == (Kernel(name="extern_kernels.mm", lines=("a", "b")),)
    assert kernels_of([*called, Generated(name="cpp_fused", nodes=(("mm", "c"),))], {"mm"}) == (
        Kernel(name="cpp_fused", lines=("c",)),
    )


def test_the_only_kernel_is_blamed_where_no_node_is_known():
    assert kernels_of(MADE[:1] * 2, ()) == (Kernel(name="one", lines=("net.py:1 in forward: x + y",)),)


def test_a_bundle_without_kernels_has_none(tmp_path):
    assert read_kernels(tmp_path / "steps_0.kernels") == []


SCRIPT = """import torch

# --- the graph ---

class Graph(torch.nn.Module):
    def forward(
        self,
        x: "f32[2]",
    ):
        # File: net.py:7 in forward, code: y = x + 1
        y: "f32[2]" = x + 1

        # File: net.py:9 in forward, code: return y.sin().cos()
        sin: "f32[2]" = y.sin()
        cos: "f32[2]" = sin.cos()
        return (cos,)

# --- its inputs ---
x = 5
"""


def test_a_line_of_a_script_leads_to_the_users():
    sum_, chain = "net.py:7 in forward: y = x + 1", "net.py:9 in forward: return y.sin().cos()"
    assert [users_lines(SCRIPT, ())[number] for number in (11, 14, 15)] == [sum_, chain, chain]
    assert users_lines(SCRIPT, ("one", "two", "three")) == {11: "one", 14: "two", 15: "three"}
    assert users_lines("", ("one",)) == {}


@pytest.mark.parametrize("planted", ["lowering", pytest.param("codegen", marks=pytest.mark.slow)])
def test_a_wrong_kernel_is_named_with_the_users_line(planted):
    torch.manual_seed(0)
    case = torchparity.capture(Net(), (torch.randn(8, 16),), backend=wrong_stage(planted, "cos"))[0]
    with Pool(workers=1) as pool:
        found = torchparity.blame(case, pool=pool)

    (kernel,) = found.kernels
    assert kernel.name.startswith("cpp_fused_")
    assert "cos" in kernel.name
    assert "sigmoid" not in kernel.name
    (line,) = kernel.lines
    assert line.partition("test_generated.py:")[2].endswith("in forward: z = torch.cos(self.second(y))")
