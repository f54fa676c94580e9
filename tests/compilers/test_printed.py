"""Our own source as text: the same whatever Python prints it, for whatever Python reads it."""

import ast

import pytest

from torchparity.compilers.printed import as_source, embedded
from torchparity.repro.script import CALLED

NAMES, NUMBER = ["a", "b"], 1.23456
TEXTS = [
    """f"{', '.join(NAMES)} differ\"""",
    """f"{{{'x'}}} {NUMBER:.2f} {NAMES!r:>20} {'y' if NUMBER else 'z'}\"""",
    """f"{NUMBER:.3f} and {NAMES[0]}\"""",
    """f"{f'{NUMBER:.1f}'}\"""",
    '''"plain"''',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_with_fields_means_the_same(text):
    tree = ast.parse(text, mode="eval")
    assert eval(as_source(tree)) == eval(text)


def nested(text):
    """Return the f-strings in a text that have quotes inside of a field."""
    fields = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FormattedValue)]
    return [
        ast.unparse(field)
        for field in fields
        for part in ast.walk(field.value)
        if isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
    ]


@pytest.mark.parametrize(("module", "wanted"), [("torchparity.judge.standalone", ("main",)),
                                                ("torchparity.repro.reading", CALLED)])  # fmt: skip
def test_no_script_has_quotes_inside_of_a_field(module, wanted):
    """Python 3.12 would print both with the same quotes, and 3.11 could not read it."""
    _, text = embedded(module, *wanted)
    assert ".format(" in text or module.endswith("reading")
    assert nested(text) == []
