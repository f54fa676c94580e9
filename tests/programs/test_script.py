"""The script of a program: text that is Python, for every kind of difference."""

import subprocess
import sys

import pytest
import torch

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


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_does_not_import_torch_has_scripts_that_do(kind):
    text = PROGRAM.replace("import torch\n", "from torch import ones\n").replace("torch.ones", "ones")
    for script in scripts(text, kind, ("output",), request_for("check", {})):
        assert script.text.splitlines().count("import torch") == 1


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
        "def make():\n    return (program,)\n",
        "def make():\n    return program, (1,), 2\n",
    ],
)
def test_what_is_no_pair_has_no_script(text):
    assert pieces_of(text) is None
    assert list(scripts(text, "value", (), request_for("check", {}))) == []


MODULE = """
import torch

class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.b = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, a):
        self.seen.add_(1)
        return a * self.b

def make():
    return Program(), (torch.ones(2),)
"""
CALLS = """
import torch
import torchparity

def program(a):
    return a * 2

def make():
    a = torch.ones(3)
    return torchparity.Subject(program, input_sets=[(a,), (a[:2].clone(),)])
"""


def test_a_module_shows_its_gradients_and_its_buffers():
    pieces = pieces_of(MODULE)
    assert (pieces.function, pieces.module, pieces.made[-1]) == ("module", True, "module = Program()")
    gradients = next(scripts(MODULE, "value", ("grad.b",), request_for("check", {}))).text
    buffers = next(scripts(MODULE, "value", ("buffer.seen",), request_for("check", {}))).text
    assert "*module.parameters()" in gradients
    assert "module.buffers()" in buffers
    for text in (gradients, buffers):
        exec(compile(text.replace("torch.compile", "(lambda function: function)"), "repro.py", "exec"), {})


def test_several_calls_are_made_of_one_wrapped_function():
    pieces = pieces_of(CALLS)
    assert pieces.calls == [["a"], ["x"]]
    for leaf in ("output", "input.args[0]", "grad.args[0]"):
        text = next(scripts(CALLS, "value", (leaf,), request_for("check", {}))).text
        assert "wrapped = wrap(program)" in text
        assert "torchparity" not in text
        compile(text, "repro.py", "exec")
    text = next(scripts(CALLS, "value", ("output",), request_for("check", {}))).text
    exec(compile(text.replace("torch.compile", "(lambda function: function)"), "repro.py", "exec"), {})


def test_what_is_set_stands_before_the_program_and_is_imported_once():
    settings = {"inductor.epilogue_fusion": False, "inductor.max_fusion_size": 1}
    text = next(scripts(PROGRAM, "value", ("output",), request_for("check", {"config": settings}))).text
    assert text.count("import torch._inductor.config") == 1
    assert text.index("max_fusion_size") < text.index("def program")


ALONE = """
import torch

def program():
    return torch.ones(2)

def make():
    return {returned}
"""


@pytest.mark.parametrize("returned", ["program", "lambda: torch.ones(2)"])
def test_a_function_that_takes_nothing_may_stand_alone(returned):
    pieces = pieces_of(ALONE.format(returned=returned))
    assert pieces is not None
    assert (pieces.function, pieces.calls) == (returned, [[]])
    (first, *_) = scripts(ALONE.format(returned="program"), "value", [], request_for("check", {"backend": "eager"}))
    exec(compile(first.text, "repro.py", "exec"), {})


def twice(a):
    return a + 1, (a + 1).detach()


def halves(a):
    return (a + 1).tensor_split(2)


def transposes(a):
    a.t_()


LOST_FACTS = [
    # What is lost: memory that two results share, a result's that is an input's, one that nobody shares.
    ("alias", "output[1]", halves, lambda a: tuple(part.clone() for part in halves(a))),
    ("alias", "output", lambda a: a[1:], lambda a: a[1:].clone()),
    ("alias", "output[0]", lambda a: [a.clone(), 3], lambda a: [a, 3]),
    ("stride", "output", lambda a: a.t(), lambda a: a.t().contiguous()),
    ("stride", "input.args[0]", transposes, lambda a: None),
    ("requires_grad", "output[1]", twice, lambda a: (a + 1, a + 1)),
    ("requires_grad", "input.args[0]", lambda a: a.detach_(), lambda a: a),
]


@pytest.mark.parametrize(("kind", "leaf", "eager", "broken"), LOST_FACTS)
def test_a_script_shows_a_fact_that_is_lost_wherever_it_is(kind, leaf, eager, broken, monkeypatch):
    made = "torch.ones(4, 3).requires_grad_(LEARNS) + 0"
    text = f"def program(a):\n    return eager(a)\n\ndef make():\n    return program, ({made},)\n"
    (script,) = scripts(text, kind, (leaf,), request_for("check", {}))
    names = {"eager": eager, "LEARNS": kind == "requires_grad"}
    monkeypatch.setattr(torch, "compile", lambda function: function)
    exec(script.text, dict(names))
    monkeypatch.setattr(torch, "compile", lambda function: broken)
    with pytest.raises(AssertionError):
        exec(script.text, dict(names))


DIES_LATER = """
import os
import torch

calls = []

def program(a):
    calls.append(1)
    torch._dynamo.graph_break()
    if len(calls) == 6:
        os.abort()
    return a + 1

def make():
    return (program, torch.ones(3))
"""


def test_what_dies_sooner_or_later_is_called_often(tmp_path):
    """Memory that is destroyed kills a process when somebody next looks at it."""
    found = list(scripts(DIES_LATER, Kind.CRASHES.value, ["output"], request_for("check", {"backend": "eager"})))
    codes = []
    for number, script in enumerate(found[:2]):
        place = tmp_path / f"script{number}.py"
        place.write_text(script.text)
        ended = subprocess.run([sys.executable, str(place)], check=False, capture_output=True, text=True)
        codes.append(ended.returncode)
    assert codes == [0, 1]
    assert "AssertionError: SIGABRT" in ended.stderr
