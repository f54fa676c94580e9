"""Suites: what a file means, and what it cannot mean."""

import pytest

from torchparity import UsageError
from torchparity.fleet.cells import Cell, options_text
from torchparity.fleet.ready import SUITES, ready_made
from torchparity.fleet.suite import cells_of, read_suite

MODEL = "import torch\n\ndef make(width=2):\n    return torch.nn.Linear(width, 2), (torch.ones(1, width),)\n"


@pytest.fixture
def suite(tmp_path):
    for name in ("one.py", "two.py", "zoo/three.py", "zoo/four.py"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(MODEL)

    def read(text, name="suite.toml"):
        (tmp_path / name).write_text(text)
        return read_suite(tmp_path / name)

    return read


def said(cells):
    return [(cell.title, options_text(cell.options)) for cell in cells]


def test_targets_times_options(suite):
    cells = suite('[[target]]\nof = ["one.py:make", "two.py:make"]\n[matrix]\nbackend = ["inductor", "aot_eager"]\n')
    assert said(cells) == [
        ("one.py:make", "backend=inductor"), ("one.py:make", "backend=aot_eager"),
        ("two.py:make", "backend=inductor"), ("two.py:make", "backend=aot_eager"),
    ]  # fmt: skip


def test_a_glob_is_every_file_in_order(suite):
    assert said(suite('target = { of = "zoo/*.py:make" }\n')) == [
        ("zoo/four.py:make", "defaults"),
        ("zoo/three.py:make", "defaults"),
    ]


def test_a_target_has_its_own_options_parameters_and_limits(suite):
    cells = suite(
        """
        [[target]]
        of = "one.py:make"
        parameters = { width = [2, 3] }
        timeout = 7
        memory = 0.5
        labels = ["tiny"]
        train = true
        ignore = ["stride", "alias"]
        config = { "inductor.max_fusion_size" = 1 }
        [[target]]
        of = "package.module:name"
        [matrix]
        train = [false, true]
        [limits]
        timeout = 9
        """
    )
    assert said(cells) == [
        ("one.py:make(width=2)", "config.inductor.max_fusion_size=1 ignore=stride,alias train"),
        ("one.py:make(width=3)", "config.inductor.max_fusion_size=1 ignore=stride,alias train"),
        ("package.module:name", "train=false"),
        ("package.module:name", "train"),
    ]
    assert [cell.seconds for cell in cells] == [7, 7, 9, 9]
    assert [cell.memory for cell in cells] == [2**29, 2**29, None, None]
    assert cells[0].labels == ("tiny",)


def test_rules_leave_cells_out(suite):
    matrix = '[matrix]\nbackend = ["inductor", "aot_eager"]\ntrain = [false, true]\n'
    own = suite(f'[[target]]\nof = "one.py:make"\nskip = [{{ backend = "aot_eager", train = true }}]\n{matrix}')
    assert ("one.py:make", "backend=aot_eager train") not in said(own)
    assert len(own) == 3
    only = suite(f'[[target]]\nof = ["one.py:make", "two.py:make"]\nonly = [{{ train = true }}]\n{matrix}')
    assert {cell.options["train"] for cell in only} == {True}
    far = suite(f'[[target]]\nof = ["one.py:make", "two.py:make"]\n[[skip]]\nof = "two*"\nreason = "slow"\n{matrix}')
    assert {cell.title for cell in far} == {"one.py:make"}


def test_a_suite_in_python(suite):
    text = "def suite():\n    return {'target': {'of': 'one.py:make'}, 'matrix': {'batch': [1, 2]}}\n"
    assert said(suite(text, "suite.py")) == [("one.py:make", "batch=1"), ("one.py:make", "batch=2")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[target]]\nof = 'one.py:make'\ntiemout = 3\n", "timeout"),
        ("[[target]]\nof = 'one.py:make'\n[matrix]\nbackand = 'inductor'\n", "backend"),
        ("[[targets]]\nof = 'one.py:make'\n", "target"),
        ("[[target]]\ntimeout = 3\n", "of"),
        ("[[target]]\nof = 'none.py:make'\n", "none.py"),
        ("[[target]]\nof = 'none*.py:make'\n", "none"),
        ("[[target]]\nof = 'one.py'\n", "names no target"),
        ("[[target]]\nof = 'one.py:make'\ntimeout = 0\n", "timeout"),
        ("[[target]]\nof = 'one.py:make'\ntimeout = 'long'\n", "timeout"),
        ("[[target]]\nof = 'one.py:make'\n[matrix]\nbackend = []\n", "backend"),
        ("[[target]]\nof = 'one.py:make'\n[matrix]\nsteps = 0\n", "steps"),
        ("[[target]]\nof = 'one.py:make'\nskip = ['train']\n", "skip"),
        ("[[target]]\nof = 'one.py:make'\nskip = [{ trian = true }]\n", "train"),
        ("[[target]]\nof = 'one.py:make'\n[[skip]]\nof = '*'\n", "nothing to run"),
        ("[matrix]\ntrain = true\n", "no target"),
        ("[[target]\n", "TOML"),
        ("matrix = 3\n[[target]]\nof = 'one.py:make'\n", "no table"),
    ],
)
def test_what_it_cannot_mean_is_refused(suite, text, words):
    with pytest.raises(UsageError) as caught:
        suite(text)
    assert words in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("text", ["suite = 3\n", "1 / 0\n", "def suite():\n    raise ValueError('x')\n", ""])
def test_python_that_is_no_suite_is_refused(suite, text):
    with pytest.raises(UsageError):
        suite(text, "suite.py")


def test_a_key_tells_what_is_checked_and_nothing_else():
    cell = Cell(target="a.py:b", options={"train": True, "backend": "inductor"})
    assert cell.key == Cell(target="a.py:b", options={"backend": "inductor", "train": True}, seconds=3, repeat=4).key
    assert cell.key != Cell(target="a.py:b", options={"train": False, "backend": "inductor"}).key
    assert cell.key != Cell(target="a.py:b", options=cell.options, parameters={"n": 1}).key


@pytest.mark.parametrize("name", SUITES)
def test_ready_made_suites_are_suites(name, tmp_path):
    cells = cells_of(ready_made(name), base=tmp_path, name=name)
    assert len({cell.title for cell in cells}) * 4 == len(cells)
    if name == "transformers":
        assert len({cell.title for cell in cells}) >= 60


def test_there_is_no_other_ready_made_suite():
    with pytest.raises(UsageError, match="transfomers"):
        ready_made("transfomers")
