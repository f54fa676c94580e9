"""A backend that no other process can find: `diagnose` says so, and names no operation."""

from __future__ import annotations

import pytest

from warm import command_line

MODEL = """
import torch
made = {}
exec("def f(graph, inputs): return lambda *args: [value * 1.1 for value in graph(*args)]", made)
torch._dynamo.register_backend(made["f"], name="lost_one")

def make():
    return torch.nn.Tanh(), (torch.randn(2, 3),)
"""


@pytest.mark.slow
def test_a_diagnosis_says_why_no_graph_was_judged(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    words = ["diagnose", "model.py:make", "--backend", "lost_one", "--out", "found", "-q"]
    ended = command_line(tmp_path, *words)
    assert ended.returncode == 1, ended.stderr
    where = next(line for line in ended.stdout.splitlines() if line.startswith("where"))
    assert "no other process can find it" in where
    assert "tanh" not in where
