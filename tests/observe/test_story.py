"""The story of a compilation: golden text of a model that has everything, and what happens where a part is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import torchparity
from torchparity import UsageError, torchapi
from torchparity.observe.story import function_name, is_library, reason_of
from torchparity.records import COMPILED, FAILED, LEFT_TO_PYTHON, Span
from torchparity.report.story import story_data, story_text
from torchparity.run.variants import at_batch

HERE = Path(__file__).parent
GOLDEN = HERE / "story.txt"
# Three graph breaks, a loop, a `cond`, functions three deep; a recompile comes with another batch.
MODEL = """\
import torch


def innermost(x):
    return x.sin()


def inner(x):
    return innermost(x) + 1


def outer(x):
    return inner(x) * 2


class Eventful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = outer(self.linear(x))
        print(end="")
        for _ in range(3):
            x = inner(x)
        x = torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos() + 1, (x,))
        torch._dynamo.graph_break()
        x = x + 1
        if x.mean() > -1000:
            x = x * 2
        return x


def make():
    torch.manual_seed(0)
    return Eventful(), (torch.randn(5, 4),)
"""


def load(folder, text=MODEL):
    """Write a model to a file, as source lines come from files, and import it."""
    path = folder / "eventful.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("eventful", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normalised(text):
    """Put a word where a number depends on the machine, on Python's bytecode or on torch's version."""
    text = re.sub(r"\d+\.\d\d s", "N s", text)
    text = re.sub(r"\(torch \S+\)", "(torch N)", text)
    text = re.sub(r"\d+ (steps|guards)", r"N \1", text)
    symbols = {}
    return re.sub(r"\bs\d+\b", lambda found: symbols.setdefault(found[0], f"s_{len(symbols)}"), text)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    model, args = load(tmp_path_factory.mktemp("story")).make()
    return torchparity.explain(model, args, backend="eager", batches=[6])


def test_golden_text(story, monkeypatch):
    monkeypatch.chdir(Path(story.frames[0].place.file).parent)
    assert normalised(story_text(story)) == GOLDEN.read_text(encoding="utf-8").rstrip("\n")


def test_everything_is_in_the_records(story):
    assert story.exit_code == 0
    assert story.notes == ()
    assert [frame.name for frame in story.frames] == ["0/0", "1/0", "2/0", "3/0", "0/1", "1/1", "2/1", "3/1"]
    assert [frame.call for frame in story.frames] == [1] * 4 + [3] * 4
    assert [frame.outcome for frame in story.frames] == [COMPILED] * 8
    first, second, third, last = story.frames[:4]
    assert [(entry.function, entry.depth) for entry in first.inlined if not entry.library] == [
        ("outer", 1),
        ("inner", 2),
        ("innermost", 3),
    ]
    assert [entry.times for entry in second.inlined if entry.function == "inner"] == [3]
    assert first.attempts == 2
    assert first.steps > sum(entry.steps for entry in first.inlined) > 0
    assert [frame.ends.place.source for frame in (first, second, third)] == [
        'print(end="")',
        "torch._dynamo.graph_break()",
        "if x.mean() > -1000:",
    ]
    assert last.ends is None
    assert last.resumes_after == third.ends.place.line
    assert len(story.breaks) == 3
    assert [body.operations for body in second.subgraphs[0].bodies] == [1, 2]
    assert all(frame.guards for frame in story.frames)
    again = story.frames[4]
    assert again.recompiles[0].earlier == "0/0"
    (symbol,) = again.subgraphs[0].symbols
    assert (symbol.value, symbol.low, symbol.high) == (6, 2, None)
    assert any(symbol.name in entry.sizes for entry in again.subgraphs[0].inputs)


def test_times_lie_inside_one_another(story):
    def inside(inner: Span, outer: Span) -> bool:
        return outer.start <= inner.start and inner.start + inner.seconds <= outer.start + outer.seconds

    calls = {call.number: call.ran for call in story.calls}
    for frame in story.frames:
        assert inside(frame.compiled, calls[frame.call])
        assert all(inside(subgraph.compiled, frame.compiled) for subgraph in frame.subgraphs)
    assert 0 < story.compile_seconds <= story.seconds


def test_guards_are_shown_when_asked_for_with_names_of_the_user(story):
    assert "x is float32[5, 4], stride [4, 1]" not in story_text(story)
    text = story_text(story, guards=True, width=200)
    assert "x is float32[5, 4], stride [4, 1]" in text
    assert "x is float32[any, 4], stride [4, 1]" in text
    assert "self.linear.weight is float32[4, 4], stride [4, 1]" in text
    assert "L['x']" not in text


def test_plain_data(story):
    data = story_data(story)
    assert data["schema"] == 1
    assert data["counts"]["breaks"] == 3
    assert data["counts"]["recompiles"] == 4
    assert data["frames"][0]["subgraphs"][0]["compiled"]["seconds"] >= 0
    assert data["exit_code"] == 0


def test_a_model_without_a_break():
    story = torchparity.explain(torch.nn.Linear(4, 4), (torch.randn(2, 4),), backend="eager", calls=1)
    assert len(story.frames) == len(story.subgraphs) == 1
    assert story.breaks == story.recompiled == ()
    assert story_text(story).splitlines()[0] == "Linear on eager: 1 frame, 1 subgraph, 0 graph breaks, 0 recompiles"


def test_a_late_backward_pass_has_its_time():
    story = torchparity.explain(
        torch.nn.Linear(4, 4), (torch.randn(2, 4),), backend="aot_eager", train=True, dynamic=False
    )
    (subgraph,) = story.subgraphs
    assert subgraph.backward is not None
    assert subgraph.backward.start >= subgraph.compiled.start + subgraph.compiled.seconds
    assert ", backward " in story_text(story)


def test_a_function_that_cannot_be_resumed_is_left_to_python():
    def loop(x):
        for _ in range(2):
            x = x + 1
            print(end="")
        return x

    story = torchparity.explain(loop, (torch.randn(3),), backend="eager")
    assert story.exit_code == 0
    assert story.frames[0].outcome == LEFT_TO_PYTHON
    assert story.frames[0].refused_at.source == 'print(end="")'
    assert "left to Python at " in story_text(story, width=200)


def test_what_dynamo_refuses_ends_the_story():
    def refused(x):
        print(end="")
        return x + 1

    story = torchparity.explain(refused, (torch.randn(3),), backend="eager", fullgraph=True)
    assert story.exit_code == 125
    assert story.failure.stage == "compile"
    assert story.frames[-1].outcome == FAILED
    assert "raised Unsupported: " in story_text(story)


def test_a_backend_that_raises_ends_the_story():
    def broken(graph_module, inputs):
        raise RuntimeError("no such kernel")

    story = torchparity.explain(torch.sin, (torch.randn(3),), backend=broken)
    assert story.exit_code == 125
    assert story.frames[-1].reason == "RuntimeError: no such kernel"
    assert len(story.subgraphs) == 1


def test_a_guard_on_a_value_is_told_in_words():
    def scaled(x, factor):
        return x * 2 if factor == "twice" else x * 3

    sets = [(torch.ones(3), "twice"), (torch.ones(3), "thrice")]
    story = torchparity.explain(scaled, input_sets=sets, backend="eager", calls=1)
    assert "recompiled: 0/0 needs: factor == 'twice'" in story_text(story)


def test_hostile_text_is_shown_and_not_obeyed():
    def backend(graph_module, inputs):
        raise RuntimeError("[red]not markup[/red] [/] \x1b[31mno colour\x07")

    subject = torchparity.Subject(torch.sin, (torch.randn(3),), name="[bold]name[/nope]")
    text = story_text(torchparity.explain(subject, backend=backend), width=200)
    assert "[bold]name[/nope] on " in text
    assert "[red]not markup[/red] [/] \\x1b[31mno colour\\x07" in text
    assert "\x1b" not in text


def test_a_name_that_torch_lacks_is_a_note(monkeypatch):
    missing = ("torch._dynamo.symbolic_convert.InstructionTranslatorBase.no_such_step", None, None)
    monkeypatch.setattr(
        torchapi.dynamo, "WATCHED", (*torchapi.dynamo.WATCHED[:2], missing, *torchapi.dynamo.WATCHED[3:])
    )
    story = torchparity.explain(torch.nn.Linear(4, 4), (torch.randn(2, 4),), backend="eager")
    assert story.exit_code == 0
    assert len(story.subgraphs) == 1
    assert story.frames[0].steps == 0
    assert story.notes[0].startswith(f"{missing[0]} is not told: TorchVersionError: ")


def test_what_goes_wrong_in_the_telling_does_not_reach_the_compiler(monkeypatch):
    def wrong(*facts):
        raise ValueError("deaf")

    watched = [
        (path, wrong if before else None, wrong if after else None) for path, before, after in torchapi.dynamo.WATCHED
    ]
    monkeypatch.setattr(torchapi.dynamo, "WATCHED", tuple(watched))
    story = torchparity.explain(torch.nn.Linear(4, 4), (torch.randn(2, 4),), backend="eager")
    assert story.exit_code == 0
    assert any(note.endswith("is not told: ValueError: deaf") for note in story.notes)
    assert "note: " in story_text(story)


def test_watching_does_not_change_what_is_compiled(tmp_path):
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module.print_readable(print_output=False))
        return graph_module.forward

    model, args = load(tmp_path).make()
    torchparity.explain(model, args, backend=backend)
    watched = graphs.copy()
    graphs.clear()
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(*args)
    assert len(graphs) == 4
    assert watched == graphs


def test_watching_leaves_nothing_behind():
    before = [torchapi.lookup(path) for path, _, _ in torchapi.dynamo.WATCHED]
    handler = torchapi.lookup(torchapi.dynamo.BACKWARD_EVENTS)
    callbacks = len(handler.start_callbacks), len(handler.end_callbacks)
    torchparity.explain(torch.sin, (torch.randn(3),), backend="eager")
    assert [torchapi.lookup(path) for path, _, _ in torchapi.dynamo.WATCHED] == before
    assert (len(handler.start_callbacks), len(handler.end_callbacks)) == callbacks


def test_the_model_and_its_inputs_are_left_as_they_were():
    model = torch.nn.BatchNorm1d(4)
    inputs = torch.randn(3, 4)
    kept = inputs.clone()
    torchparity.explain(model, (inputs,), backend="eager", train=True)
    assert model.num_batches_tracked == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, kept)


def test_other_batches_are_cut_or_repeated():
    args, kwargs = at_batch(((torch.arange(2), 7), {"mask": torch.ones(2, 3), "table": torch.ones(5)}), 3)
    assert args[0].tolist() == [0, 1, 0]
    assert args[1] == 7
    assert kwargs["mask"].shape == (3, 3)
    assert kwargs["table"].shape == (5,)
    assert at_batch(((torch.arange(4),), {}), 1)[0][0].tolist() == [0]


@pytest.mark.parametrize("options", [{"calls": 0}, {"batches": [0]}])
def test_nothing_to_tell(options):
    with pytest.raises(UsageError, match="leave nothing to tell"):
        torchparity.explain(torch.sin, (torch.randn(3),), backend="eager", **options)


def test_names_and_reasons():
    assert function_name("Model.torch_dynamo_resume_in_forward_at_14") == ("Model.forward", 14)
    assert function_name("forward") == ("forward", None)
    assert is_library(torch.nn.functional.__file__)
    assert is_library(re.__file__)
    assert not is_library(pytest.__file__)
    assert not is_library(__file__)
    text = "Encountered ... Graph break encountered:\n\nCannot do it\n  Explanation: It is hard.\n  Hint: Do not."
    assert reason_of(text) == ("Cannot do it", "It is hard.")
    assert reason_of("generic_jump TensorVariable()")[0] == "a branch that depends on the values of a tensor"
    assert reason_of("") == ("no reason given", "")
