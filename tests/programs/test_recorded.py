"""A model as a flat program: what is written down computes what the model computes."""

import pytest
import torch

from torchparity.programs.flat import plain_values, shortest
from torchparity.programs.recorded import NotRecordable, record
from torchparity.programs.script import pieces_of, scripts, shown_by


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 8)
        self.norm = torch.nn.LayerNorm(4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        value, gate = self.linear(self.norm(x)).chunk(2, -1)
        mask = torch.full(x.shape[-1:], (x > 0).any())
        hidden = torch.where(mask, value * torch.sigmoid(gate), 0.0)
        hidden[..., 1:3] = hidden[..., :2] * 2
        self.seen.add_(1)
        return x[:, None].squeeze(1) + hidden.to(torch.float64).float() - self.seen


def run(text):
    namespace = {}
    exec(text, namespace)
    function, inputs = namespace["make"]()
    return function(*inputs)


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_program_computes_what_the_model_computes(blocks, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(blocks)))
    x = torch.randn(3, 4)
    with torch.no_grad():
        recorded, values = record(model, (x,), {})
        for block in model:
            block.seen.zero_()
        expected = model(x)
    torch.save(values, tmp_path / "values.pt")

    text = recorded.text(0, len(recorded.lines), lambda name: f"torch.load({str(tmp_path / 'values.pt')!r})[{name!r}]")

    with torch.no_grad():
        torch.testing.assert_close(run(text), expected, rtol=0, atol=0)


def test_every_part_of_it_runs_on_plain_data():
    model = torch.nn.Sequential(Block(), Block())
    recorded, _ = record(model, (torch.randn(3, 4),), {})
    total, ran = len(recorded.lines), 0
    for start in range(total):
        for stop in range(start + 1, total + 1):
            try:
                run(recorded.text(start, stop, plain_values(recorded)))
            except KeyError:
                continue  # It would begin with one of the two halves of `chunk`.
            ran += 1
    assert ran > total * total / 4


def test_halving_finds_the_lines_that_are_needed():
    model = torch.nn.Sequential(*(Block() for _ in range(6)))
    recorded, _ = record(model, (torch.randn(3, 4),), {})
    asked = []

    def question(texts):
        asked.extend(texts)
        lines = texts[0].splitlines()
        return 0 if sum("torch.full(" in line for line in lines) >= 3 else None

    text = shortest(recorded, question, lambda name: "torch.load('values.pt')", plainly=True)
    body = text.partition("def program")[2].partition("def make")[0]
    assert body.count("torch.full(") == 3
    assert body.strip().splitlines()[1].count("torch.full(") == 1, "it does not begin with the first that is needed"
    assert len(asked) < 3 * len(recorded.lines).bit_length()


def test_what_cannot_be_written_down_is_refused():
    class Odd:
        pass

    with pytest.raises(NotRecordable, match="Odd"):
        record(lambda x: torch.nn.functional.dropout(x, p=Odd()), (torch.ones(2),), {})


PROGRAM = """
import torch

def program(a):
    return a + torch.compiler.is_compiling()

def make():
    return program, (torch.ones(2),)
"""


def test_a_script_shows_what_differs_and_passes_where_nothing_is_compiled():
    shown = shown_by(PROGRAM, "value", ("output",), {"backend": "eager"})

    assert shown is not None
    assert shown.beyond_default
    assert "AssertionError" in shown.output
    assert len(shown.text.strip().splitlines()) <= 15


@pytest.mark.slow
def test_what_does_not_differ_has_no_script():
    assert (
        shown_by(PROGRAM.replace("torch.compiler.is_compiling()", "1"), "stride", ("output",), {"backend": "eager"})
        is None
    )


@pytest.mark.parametrize("kind", ["value", "stride", "alias", "raises", "accepts_invalid", "crashes", "requires_grad"])
def test_every_kind_has_scripts_that_are_python(kind):
    options = {"dynamic": True, "config": {"inductor.epilogue_fusion": False}, "no_grad": True}
    for text, _ in scripts(PROGRAM, kind, ("input.args[0]", "grad.args[0]"), options):
        compile(text, "repro.py", "exec")
        assert "torch._inductor.config.epilogue_fusion = False" in text
        assert "dynamic=True" in text


def test_arguments_that_have_no_name_get_one():
    pieces = pieces_of(
        "def program(a, b):\n    return a\n\ndef make():\n    c = 1\n    return program, (c, torch.ones(2))\n"
    )

    assert pieces.made == ["c = 1", "y = torch.ones(2)"]
    assert pieces.call == "wrap(program)(c, y)"
