"""The script of a program: text that is Python, for every kind of difference."""

import pytest

from torchparity.programs.script import HANGS, pieces_of, scripts
from torchparity.records import Kind
from torchparity.request import request_for

PROGRAM = """
import torch

def program(a):
    return a + torch.compiler.is_compiling()

def make():
    return program, (torch.ones(2),)
"""
KINDS = [kind.value for kind in Kind] + [HANGS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_scripts_that_are_python(kind):
    options = {"dynamic": True, "config": {"inductor.epilogue_fusion": False}, "no_grad": True}
    request = request_for("check", options)
    made = list(scripts(PROGRAM, kind, ("input.args[0]", "grad.args[0]"), request))
    assert made
    for script in made:
        compile(script.text, "repro.py", "exec")
        assert "epilogue_fusion = False" in script.text
        assert "dynamic=True" in script.text
        assert "set_grad_enabled(False)" in script.text
        assert len(script.text.strip().splitlines()) <= 25


def test_defaults_leave_no_trace():
    for script in scripts(PROGRAM, "value", ("output",), request_for("check", {})):
        assert "run(torch.compile)" in script.text
        assert "config" not in script.text


def test_arguments_that_have_no_name_get_one():
    text = "def program(a, b):\n    return a\n\ndef make():\n    c = 1\n    return program, (c, torch.ones(2))\n"
    pieces = pieces_of(text)
    assert pieces.made == ["c = 1", "y = torch.ones(2)"]
    assert pieces.call == "wrap(program)(c, y)"


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "def make():\n    pass\n",
        "def make():\n    return program\n",
        "def make():\n    return (program,)\n",
        "def make():\n    return program, (1,), 2\n",
    ],
)
def test_what_is_no_pair_has_no_script(text):
    assert pieces_of(text) is None
    assert list(scripts(text, "value", (), request_for("check", {}))) == []
