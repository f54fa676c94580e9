"""Programs that are drawn: valid, the same for a seed, and of nothing that eager leaves undefined."""

import re
from collections import Counter

import pytest
import torch

from torchparity.hunting.grammar import SHARES, Writer
from torchparity.hunting.inquiry import title_of
from torchparity.hunting.roots import calls_in, program_calls
from torchparity.hunting.scope import Undefined, refuse_unwritten, refuse_useless, shares_elements
from torchparity.hunting.templates import TABLES, TEMPLATES, UNDEFINED
from torchparity.run.target import as_subject

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = """
import torch

def program(a):
    a[1:] = 0
    return torch.cumsum(a, 0) % 2

def make():
    return program, (torch.arange(6).view(2, 3),)
"""


def run(text):
    namespace = {}
    exec(text, namespace)
    subject = as_subject(namespace["make"], "make")
    return [(subject.model(*args, **kwargs), args) for args, kwargs in subject.calls()]


def leaves(found):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def drawn():
    counts, programs, left_out = Counter(), [], Counter()
    for seed in range(400):
        writer = Writer(seed, counts)
        program = writer.write()
        counts.update(program.features)
        left_out.update(writer.left_out)
        programs.append(program)
    return programs, counts, left_out


def test_every_program_runs_twice_alike(drawn):
    for program in drawn[0]:
        first, second = run(program.text), run(program.text)
        for left, right in zip(leaves(first), leaves(second), strict=True):
            torch.testing.assert_close(
                left, right, rtol=0, atol=0, msg=lambda told, text=program.text: f"{told}\n{text}"
            )


def test_nothing_is_scattered_into_what_overlaps():
    """Eager keeps the strides of what it copies there, and writes to the next window as well."""
    windows = torch.arange(7.0).unfold(0, 3, 2)
    once = windows.clone().slice_scatter(windows.narrow(1, 0, 1), 1, -1)
    assert not torch.equal(windows.slice_scatter(windows.narrow(1, 0, 1), 1, -1), once)
    keeping = [entry.text for entry in TEMPLATES if re.search(r"(select|slice|diagonal|strided)_scatter\(", entry.text)]
    assert len(keeping) == 4
    assert all(text.startswith("{w}.") for text in keeping)


def test_nothing_is_infinite_or_uninitialised(drawn):
    for program in drawn[0]:
        assert "torch.empty" not in program.text
        for leaf in leaves(run(program.text)):
            if leaf.is_floating_point():
                assert torch.isfinite(leaf).all(), program.text


def test_a_seed_is_a_program():
    assert Writer(17).write() == Writer(17).write()
    assert Writer(17).write() != Writer(18).write()


def test_nearly_every_form_is_drawn(drawn):
    forms = {template.name for template in TEMPLATES}
    missing = forms - set(drawn[1])
    assert len(missing) < 0.15 * len(forms), sorted(missing)


def test_every_table_has_a_share():
    assert set(SHARES) == set(TABLES)


def test_what_is_left_out_has_a_reason(drawn):
    assert set(drawn[2]) <= set(UNDEFINED)
    assert drawn[2]["refused"] > 0


def test_there_is_something_of_everything(drawn):
    texts = "\n".join(program.text for program in drawn[0])
    for wanted in ("requires_grad_()", ".mT", "channels_last", "[..., ::2]", "torch.uint8", "torch.bool", "float16",
                   "torch.complex", "expand(", "_(", "if ", "view(0", "view(())", ".detach()[", "torch.nn.Module",
                   "register_buffer", "torch.nn.Parameter", "input_sets"):  # fmt: skip
        assert wanted in texts, wanted
    assert {tuple(program.options) for program in drawn[0]} >= {(), ("dynamic",), ("config",), ("no_grad",), ("mode",)}


def test_what_the_compiler_seldom_does_is_wanted_more():
    form = next(template.name for template in TEMPLATES if template.table == "view")
    plain = sum(form in Writer(seed).write().features for seed in range(150))
    liked = sum(form in Writer(seed, liked={form: 50.0}).write().features for seed in range(150))
    assert liked > 2 * plain


def test_special_values_are_asked_for():
    texts = [Writer(seed, special=True).write().text for seed in range(60)]
    assert any("float('nan')" in text for text in texts)
    assert not any("float('nan')" in Writer(seed).write().text for seed in range(60))
    for text in texts:
        run(text)


@pytest.mark.parametrize(
    ("tensor", "shares"),
    [
        (torch.ones(3, 4), False),
        (torch.ones(3, 4).t(), False),
        (torch.ones(1).expand(3), True),
        (torch.ones(5).unfold(0, 2, 1), True),
        (torch.ones(5).unfold(0, 2, 2), False),
        (torch.ones(6).as_strided((2, 2), (1, 1)), True),
        (torch.ones(0), False),
        (torch.tensor(1.0), False),
    ],
)
def test_elements_that_share_memory_are_seen(tensor, shares):
    assert shares_elements(tensor) is shares


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.tensor([1.0, torch.inf]), "not finite"),
        (torch.full((2,), 1e9), "too large"),
        (torch.ones(100, 100), "too large"),
        (torch.tensor([200], dtype=torch.uint8), "out of range"),
    ],
)
def test_what_is_undefined_is_refused(value, reason):
    with pytest.raises(Undefined, match=reason):
        refuse_useless(value, {"a": torch.tensor([-3.0])})


def test_what_lies_behind_a_result_is_not_read():
    """The mean of a loss lies in the memory of what it is the mean of, as it happens."""
    memory = torch.zeros(40)
    result, given = memory[:1].view(()), torch.zeros(8)[1:3]
    refuse_unwritten(result.as_strided((1,), (1,), 0), [given], [result])
    refuse_unwritten(given.as_strided((2,), (5,), 2), [given], [given])  # Of an input all is known.
    refuse_unwritten(torch.zeros(100), [given], [result])
    refuse_unwritten(result.as_strided((0,), (5,), 30), [given], [result])
    with pytest.raises(Undefined, match="unwritten"):
        refuse_unwritten(result.as_strided((4,), (5,), 2), [given], [result])


def test_operations_are_told_by_name():
    assert program_calls(TEXT) == ("cumsum", "mod", "setitem", "slice")
    assert "view" not in calls_in(TEXT)


def test_a_title_says_what_fails_and_where():
    told = title_of(TEXT, {"kind": "value", "leaves": ["grad.args[0]"]})
    assert told == "torch.compile differs from eager in value: cumsum, mod, setitem, slice (gradient)"
    assert title_of(TEXT, {"kind": "raises"}).startswith("torch.compile raises, eager does not: cumsum")
    assert "come to an end" in title_of(TEXT, {"kind": "hangs"})
