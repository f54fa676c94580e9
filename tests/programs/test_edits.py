"""Each edit on the smallest text that shows it."""

import ast

import pytest

from torchparity.programs.edits import parsed, printed, size
from torchparity.programs.expressions import fewer_parts, simpler_constants, simpler_expressions
from torchparity.programs.names import (
    called_bodies,
    classes_as_functions,
    earlier_names,
    inlined,
    without_layers,
    without_parameters,
)
from torchparity.programs.statements import anchored, sliced, unwrapped, without_statements, without_unused
from torchparity.programs.values import plain_tensors, smaller_inputs


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (without_statements, "a\nb\nc\nd", "c\nd"),
        (without_statements, "a\nb\nc\nd", "a\nb\nc"),
        (without_statements, "def f():\n    a", "def f():\n    pass"),
        (sliced, "def f(a):\n    b = g(a)\n    c = h(a)\n    return b, c", "def f(a):\n    b = g(a)\n    return b"),
        (without_unused, "def f(a):\n    b = a\n    c = b\n    return a", "def f(a):\n    return a"),
        (without_unused, "def f(a):\n    if a:\n        b = a\n    return a", "def f(a):\n    return a"),
        (
            anchored,
            "def f(x):\n    for g in gs:\n        x = g(x)\n    return 1",
            "def f(x):\n    torch.ones(1)\n    return 1",
        ),
        (unwrapped, "if x:\n    a\nelse:\n    b", "b"),
        (unwrapped, "for i in range(3):\n    f(i)", "f(0)"),
        (unwrapped, "for i in range(2, 3):\n    f(i)", "f(2)"),
        (unwrapped, "for x in xs:\n    f(x)", "f(xs[0])"),
        (unwrapped, "for i, x in enumerate(xs):\n    f(i, x)", "f(0, xs[0])"),
        (unwrapped, "for x, y in zip(xs, [a, b]):\n    f(x, y)", "f(xs[0], a)"),
        (unwrapped, "for x, y in pairs:\n    f(x, y)", "f(pairs[0][0], pairs[0][1])"),
        (without_layers, "y = self.layers[0](x)", "y = x.clone()"),
        (
            classes_as_functions,
            "class M:\n    def forward(self, x):\n        return f(x)\n\ng(M(1))",
            "def M(x):\n    return f(x)\n\ng(M)",
        ),
        (unwrapped, "with g() as x:\n    f(x)", "x = g()\nf(x)"),
        (unwrapped, "try:\n    a\nfinally:\n    b", "a"),
        (simpler_expressions, "f(g(x), y)", "g(x)"),
        (simpler_expressions, "f(g(x), y)", "f(x, y)"),
        (simpler_expressions, "x.h(1)", "x"),
        (simpler_expressions, "a + b * c", "a + b"),
        (simpler_expressions, "x if y else z", "z"),
        (fewer_parts, "f(x, y, z=1)", "f(x, y)"),
        (fewer_parts, "(x, y)", "(x,)"),
        (fewer_parts, "@wrap\ndef f():\n    pass", "def f():\n    pass"),
        (fewer_parts, "{1: 2, 3: 4}", "{1: 2}"),
        (simpler_constants, "f(17)", "f(8)"),
        (simpler_constants, "f(-3)", "f(0)"),
        (simpler_constants, "f(True)", "f(False)"),
        (simpler_constants, "x.to(torch.bfloat16)", "x.to(torch.float32)"),
        (inlined, "def f(a):\n    b = g(a)\n    return h(b)", "def f(a):\n    return h(g(a))"),
        (earlier_names, "def f(a):\n    b = g(a)\n    return b", "def f(a):\n    b = g(a)\n    return a"),
        (
            without_parameters,
            "def f(a, b):\n    return a\n\ndef make():\n    return (f, (x, y))",
            "def f(a):\n    return a\n\ndef make():\n    return (f, (x,))",
        ),
        (
            without_parameters,
            "def f(a, b=1):\n    return a\n\ng = f(x, y)",
            "def f(a):\n    return a\n\ng = f(x)",
        ),
        (called_bodies, "def f(h):\n    return g(h)\n\nf(x + 1)", "def f(h):\n    return g(h)\n\ng(x + 1)"),
        (plain_tensors, "x = (torch.arange(6) * 7 % 9).view(2, 3)", "x = torch.ones(2, 3)"),
        (smaller_inputs, "x = torch.arange(6).view(2, 3)", "x = torch.arange(3).view(1, 3)"),
    ],
)
def test_an_edit_yields(edit, before, after):
    tree = parsed(before)
    found = [printed(change()) for change in edit(tree)]

    assert printed(ast.parse(after)) in found
    assert printed(tree) == printed(ast.parse(before)), "the tree that came in was changed"


def test_the_order_is_total_and_counts_operations_first():
    short, long_line = "f(x)\n", "a_name_that_is_longer_than_all_of_that\n"
    assert size(long_line) < size(short)
    assert size("x = 1\n") < size("x = 17\n")
    assert size("f(x)\n") != size("f(y)\n")
