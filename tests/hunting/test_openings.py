"""What programs begin with: operators of PyTorch's database, stretches of a model's graphs; varied, and valid."""

import random
from collections import Counter

import pytest
import torch

import torchparity
from torchparity import torchapi
from torchparity.hunting.grammar import Writer
from torchparity.hunting.openings import FILE, Given, Opening, read_openings, varied, write_openings
from torchparity.hunting.operators import OPEN, openings_of, openings_of_operators
from torchparity.hunting.scope import runs
from torchparity.hunting.stretches import openings_of_case
from torchparity.observe.capture import DYNAMO
from torchparity.verbs.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(torch.nn.Module):
    """Products, a norm, an index, something drawn, an in-place write."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, ids, scale):
        h = self.embedding(ids)
        h = torch.nn.functional.dropout(h, 0.5)
        h = torch.nn.functional.gelu(self.first(h)).transpose(0, 1)
        h = self.second(torch.nn.functional.layer_norm(h, (16,))) * scale
        h[0] = 0
        return h.softmax(-1).sum((0, 1))


@pytest.fixture(scope="module")
def stretches():
    cases = capture(Model(), (torch.arange(12).view(3, 4) % 11, 2.0))
    return [opening for case in cases if case.level == DYNAMO for opening in openings_of_case(case)]


def test_stretches_of_a_model_are_programs(stretches):
    names = Counter(part for opening in stretches for part in opening.name.removeprefix("model:").split("+"))
    assert {"linear", "gelu", "transpose", "layer_norm", "softmax", "embedding"} <= set(names)
    assert not any("dropout" in line for opening in stretches for line in opening.lines)
    for opening in stretches:
        assert runs(plain_text(opening), backward=False), plain_text(opening)


def test_indices_stay_in_range(stretches):
    chance = random.Random(3)
    looked = [opening for opening in stretches if opening.name == "model:embedding"]
    assert looked
    for opening in looked:
        for _ in range(20):
            inputs, _ = varied(opening, chance, boldness=0.0)
            for name, given in opening.inputs.items():
                if given.dtype == "int64":
                    assert 0 <= int(eval(inputs[name]).min()) <= int(eval(inputs[name]).max()) < 11


def test_programs_around_a_model_vary_it(stretches):
    programs = [Writer(seed, openings=stretches, share=1.0).write() for seed in range(80)]
    texts = {program.text for program in programs}
    assert len(texts) > 70
    assert sum(any(name.startswith("model:") for name in program.features) for program in programs) > 75
    whole = "\n".join(texts)
    for wanted in ("bfloat16", "float64", "requires_grad_()", ".mT"):
        assert wanted in whole, wanted
    for text in texts:
        assert runs(text, backward=False), text


def plain_text(opening):
    inputs, lines = varied(opening, random.Random(0), boldness=0.0)
    body = [f"    {line}" for line in [*(f"{name} = {text}" for name, text in inputs.items()), *lines, "return None"]]
    head = "\n".join(["import torch", *opening.imports])
    return "\n".join([head, "def program():", *body, "", "def make():", "    return program, ()", ""])


def test_openings_are_written_and_read(tmp_path, stretches):
    place = tmp_path / FILE
    assert read_openings(tmp_path / "none") == ()
    assert write_openings(place, stretches) == len(stretches)
    assert list(read_openings(place)) == stretches


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "lines"),
    [
        ("add", (torch.ones(2), torch.ones(2)), {"alpha": 2}, ["r0 = torch.add(a, b, alpha=2)",
                                                              "r0 = a.clone().add_(b, alpha=2)"]),
        ("cat", ([torch.ones(2), torch.ones(2)],), {"dim": 0}, ["r0 = torch.cat([a, b], dim=0)"]),
        ("topk", (torch.arange(4.0), 2), {}, ["p0, p1 = torch.topk(a, 2)"]),
        ("nn.functional.relu", (torch.ones(2),), {}, ["r0 = torch.nn.functional.relu(a)"]),
        ("to", (torch.ones(2), torch.float64), {}, ["r0 = a.to(torch.float64)"]),
        ("add", (torch.ones(2), float("inf")), {}, []),
        ("full", ((2,), 1.0), {}, []),
    ],
)  # fmt: skip
def test_a_sample_is_a_line(name, args, kwargs, lines):
    assert [opening.lines[0] for opening in openings_of(name, args, kwargs)] == lines


def test_what_an_input_looks_like_is_kept():
    given = Given(shape=(2, 3), dtype="float32", order=(1, 0), low=0)
    opening = Opening(name="operator:neg", inputs={"a": given}, lines=("r0 = torch.neg(a)",))
    inputs, lines = varied(opening, random.Random(0), boldness=0.0)
    made = eval(inputs["a"])
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), torch.float32)
    assert lines == ["r0 = torch.neg(a)"]
    assert (made >= 0).all()


def test_what_trusts_its_caller_is_no_opening():
    data, lengths = torch.arange(6.0), torch.tensor([2, 4])
    assert list(openings_of("segment_reduce", (data, "sum"), {"lengths": lengths, "unsafe": False}))
    assert not list(openings_of("segment_reduce", (data, "sum"), {"lengths": lengths, "unsafe": True}))


@pytest.mark.slow
def test_the_whole_database_opens_programs():
    assert torchapi.has_operator_database()
    openings = list(openings_of_operators())
    assert len({opening.name for opening in openings}) > 450
    trusting = ("_unsafe", "unsafe=True", "searchsorted", "bucketize", "lu_solve")
    assert [opening for opening in openings if any(word in opening.lines[0] for word in trusting)] == []
    drawn = [Writer(seed, openings=openings, share=1.0) for seed in range(400)]
    opened = sum(writer.write().features[0].startswith("operator:") for writer in drawn)
    assert opened > 380


MODELS = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.ones(2, 4),)

def nothing():
    return (lambda x: x), (1,)
"""


@pytest.mark.slow
def test_a_hunt_around_a_model_varies_its_graphs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    with pytest.raises(torchparity.TargetError, match="no graph with operations"):
        torchparity.hunt("finds", around="models.py:nothing", workers=1)
    # What could not begin is in nobody's way.
    how = {"around": "models.py:make", "programs": 4, "workers": 1, "options": {"backend": "eager"}}
    store = torchparity.hunt("finds", **how)
    assert store.statuses()["same"] == 4
    with pytest.raises(torchparity.UsageError, match="what it began with"):
        torchparity.hunt("finds", resume=True, around="models.py:make")
    features = store.features()
    assert {name for name in features if name.startswith("model:")}
    assert not any(name.startswith("operator:") for name in features)


@pytest.mark.slow
def test_a_hunt_says_where_it_does_without_operators(tmp_path, monkeypatch):
    monkeypatch.setattr(torchapi, "has_operator_database", lambda: False)
    store = torchparity.hunt(tmp_path / "finds", programs=1, workers=1, options={"backend": "eager"})
    assert "torchparity[hunt]" in store.fact("operators")


@pytest.mark.parametrize("name", ["unsafe_split", "unsafe_chunk", "native_batch_norm", "_native_batch_norm_legit"])
def test_what_trusts_its_caller_opens_no_program(name):
    """Parts share memory that no schema tells of; statistics may be longer than there are channels."""
    assert OPEN.search(name)
    assert not OPEN.search(name.removeprefix("unsafe_").replace("native_batch_norm", "batch_norm"))
