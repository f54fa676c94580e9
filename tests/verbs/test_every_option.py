"""Every verb and every option of `check`: taken, and seen in what ran, or refused with a hint."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import torchparity
from torchparity import UsageError
from torchparity.cli import main
from torchparity.cli.options import REQUEST
from torchparity.faults import plant
from torchparity.repro.bundle import read_bundle
from torchparity.request import EVERY, Options, Request, request_for
from torchparity.verbs import blame, diagnose, explain, locate, minify, passes
from torchparity.workers.pool import Pool

# A value of each option that is not what it would be without a word, and what it needs beside it.
SAMPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "backend": ("aot_eager", {}),
    "mode": ("max-autotune-no-cudagraphs", {}),
    "dynamic": (True, {}),
    "fullgraph": (True, {}),
    "options": ({"max_fusion_size": 3}, {}),
    "config": ({"inductor.max_fusion_size": 1}, {}),
    "fresh_cache": (True, {}),
    "train": (True, {}),
    "backward": (True, {}),
    "no_grad": (True, {}),
    "inference_mode": (True, {}),
    "steps": (2, {"train": True}),
    "optimizer": ("sgd", {"train": True}),
    "autocast": ("bfloat16", {}),
    "loss": ("mean", {"train": True}),
    "input_gradients": (True, {"train": True}),
    "seed": (7, {}),
    "tolerance": (0.5, {}),
    "ignore": (("stride",), {}),
    "reference": (False, {}),
    "noise_runs": (3, {}),
    "candidate_runs": (3, {}),
    "allow_eager": (True, {}),
    "exact": (True, {}),
    "every_choice": (True, {}),
}
COMPILER = {"backend", "mode", "dynamic", "fullgraph", "options", "config", "fresh_cache"}
RUN = {
    "train",
    "backward",
    "no_grad",
    "inference_mode",
    "steps",
    "optimizer",
    "autocast",
    "loss",
    "input_gradients",
    "seed",
}
JUDGED = {"tolerance", "ignore", "reference", "noise_runs", "candidate_runs", "allow_eager", "exact", "every_choice"}
# What each verb refuses; everything else is taken.
REFUSED: dict[str, set[str]] = {
    "check": set(),
    "assert_parity": set(),
    "capture": set(),
    "find_failing": set(),
    "locate": set(),
    "blame": set(),
    "minify": set(),
    "diagnose": set(),
    "explain": JUDGED,
    "check_passes": {"backend", "candidate_runs", "allow_eager", "every_choice"},
    "check_passes of one's own": COMPILER | {"candidate_runs", "allow_eager", "every_choice"},
    "guard": (COMPILER - {"backend", "config"}) | RUN | {"allow_eager", "every_choice"},
}
PAIRS = [(verb, option) for verb in REFUSED for option in EVERY]


class Seen(Exception):
    """Raised at the seam where a verb begins to work, with the request that has come there."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.request = request


def model() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), (torch.randn(3, 4),)


def asked(option: str) -> dict[str, Any]:
    value, besides = SAMPLES[option]
    return {**besides, option: value}


def test_every_option_has_a_sample_that_says_something():
    assert tuple(SAMPLES) == EVERY == tuple(Request.__dataclass_fields__)
    assert set(Options.__annotations__) | set(Options.__mro__[0].__annotations__) <= set(EVERY)
    for option, (value, _) in SAMPLES.items():
        assert getattr(Request(), option) != value


def ended_at(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, place: int) -> None:
    """End a verb where it has made its request, and hand that out."""

    def seam(*args: Any, **kwargs: Any) -> Any:
        raise Seen(kwargs["request"] if "request" in kwargs else args[place])

    monkeypatch.setattr(module, name, seam)


@pytest.fixture
def seams(monkeypatch):
    ended_at(monkeypatch, locate, "find", 1)
    ended_at(monkeypatch, diagnose, "examine", 1)
    ended_at(monkeypatch, explain, "tell_story", 1)
    ended_at(monkeypatch, passes, "check_passes_of_inductor", 1)
    ended_at(monkeypatch, passes, "check_user_passes", 2)
    assert blame.bundle_of is locate.bundle_of is minify.bundle_of


@pytest.fixture(scope="module")
def pool():
    with Pool(workers=1, compilers=False) as workers:
        yield workers


def call(verb: str, pool: Any, options: dict[str, Any]) -> Request:
    """Call a verb of the library with options; return the request that came to where it works."""
    made, args = model()
    if verb == "guard":
        return torchparity.guard(options.pop("backend", None), **options).request
    beside: dict[str, Any] = {"pool": pool} if verb in ("locate", "blame", "minify", "find_failing") else {}
    if verb == "check_passes of one's own":
        verb, beside = "check_passes", {"passes": [lambda graph: graph]}
    with pytest.raises(Seen) as seen:
        getattr(torchparity, verb)(made, args, **beside, **options)
    return seen.value.request


@pytest.mark.parametrize(("verb", "option"), PAIRS, ids=[f"{verb}-{option}" for verb, option in PAIRS])
def test_an_option_reaches_where_the_verb_works_or_is_refused(verb, option, seams, pool, monkeypatch):
    value = SAMPLES[option][0]
    if option in REFUSED[verb]:
        with pytest.raises(UsageError, match=f"does not take .*{option}") as caught:
            call(verb, pool, asked(option))
        assert caught.value.hint
        return
    if verb in ("check", "assert_parity", "capture", "find_failing"):
        return  # Run for real below.
    assert getattr(call(verb, pool, asked(option)), option) == value


@pytest.mark.parametrize("option", EVERY)
def test_check_runs_as_it_is_asked(option):
    made, args = model()
    backend = "inductor" if option == "every_choice" else "aot_eager"
    verdict = torchparity.check(made, args, **{"backend": backend, **asked(option)})
    value = SAMPLES[option][0]
    shown = verdict.recipe[option]
    if option in ("options", "config"):
        assert shown == {key: repr(entry) for key, entry in value.items()}
    else:
        assert shown in (value, list(value) if isinstance(value, tuple) else value, str(value).upper())
    if option == "candidate_runs":
        assert sum(run.name.startswith("aot_eager") for run in verdict.runs) == value
    if option == "noise_runs":  # At most so many; all of them where something is close.
        assert sum(run.name.startswith("noise") for run in verdict.runs) < value
        verdict = torchparity.check(made, args, backend=plant("negated"), noise_runs=value)
        assert sum(run.name.startswith("noise") for run in verdict.runs) == value


# One of each sort in every run; the others, which go the same way, with the slow tests.
OFTEN = ("mode", "config", "train", "no_grad", "autocast", "tolerance", "exact")
SOMETIMES = [option if option in OFTEN else pytest.param(option, marks=pytest.mark.slow) for option in EVERY]


@pytest.mark.parametrize("option", SOMETIMES)
def test_a_failure_is_captured_and_judged_again_as_it_was_seen(option, pool, tmp_path):
    """What `capture` writes and what `find_failing` asks a worker: locate, minify, blame and diagnose stand on it."""
    made, args = model()
    options = {"backend": plant("negated"), **asked(option)}
    cases = torchparity.capture(made, args, out=tmp_path, **options)
    assert getattr(read_bundle(tmp_path / cases[0].name).request, option) == written(option)
    if option == "backend":
        return  # It is right, so that nothing fails.
    case, verdict = torchparity.find_failing(made, args, pool=pool, **options)
    assert verdict.status is torchparity.Status.DIFFERS
    assert getattr(case.request, option) == written(option)
    if option in {*COMPILER, *JUDGED, "autocast", "seed"} - {"options", "config"}:
        value = SAMPLES[option][0]
        assert verdict.recipe[option] in (value, list(value) if isinstance(value, tuple) else value)


def written(option: str) -> Any:
    return SAMPLES[option][0]


@pytest.mark.parametrize("verb", ["locate", "blame", "minify", "diagnose"])
@pytest.mark.parametrize("option", ["mode", "train", "tolerance"])
def test_a_bundle_says_itself_how_it_is_compiled(verb, option, pool):
    made, args = model()
    case = torchparity.capture(made, args, backend="aot_eager")[0]
    with pytest.raises(UsageError, match=f"a bundle does not take .*{option}") as caught:
        getattr(torchparity, verb)(case, **asked(option))
    assert "capture it again" in caught.value.hint


def test_a_word_that_is_no_option_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match="locate has no option 'moed'") as caught:
        torchparity.locate(*model(), moed="max-autotune")
    assert caught.value.hint.startswith("did you mean 'mode'?")


# --- the command line ------------------------------------------------------------------------------

WORDS = {
    "backend": ["--backend", "aot_eager"],
    "mode": ["--mode", "max-autotune-no-cudagraphs"],
    "dynamic": ["--dynamic"],
    "fullgraph": ["--fullgraph"],
    "options": ["--option", "max_fusion_size=3"],
    "config": ["--config", "inductor.max_fusion_size=1"],
    "fresh_cache": ["--fresh-cache"],
    "train": ["--train"],
    "backward": ["--backward"],
    "no_grad": ["--no-grad"],
    "inference_mode": ["--inference-mode"],
    "steps": ["--steps", "2", "--train"],
    "optimizer": ["--optimizer", "sgd", "--train"],
    "autocast": ["--autocast", "bfloat16"],
    "loss": ["--loss", "mean", "--train"],
    "input_gradients": ["--input-gradients", "--train"],
    "seed": ["--seed", "7"],
    "tolerance": ["--tolerance", "0.5"],
    "ignore": ["--ignore", "stride"],
    "reference": ["--no-reference"],
    "noise_runs": ["--noise-runs", "3"],
    "candidate_runs": ["--runs", "3"],
    "allow_eager": ["--allow-eager"],
    "exact": ["--exact"],
    "every_choice": ["--every-choice"],
}
COMMANDS = {
    "check": "check",
    "capture": "capture",
    "locate": "locate",
    "blame": "blame",
    "minify": "minify",
    "diagnose": "diagnose",
    "explain": "explain",
    "passes": "check_passes",
}
COMMAND_PAIRS = [(command, option) for command in COMMANDS for option in EVERY]


def test_the_command_line_can_ask_for_everything():
    flags = {asking.flag.split("/")[0] for asking in REQUEST}
    assert {words[0] for words in WORDS.values()} == flags - {"--device"}
    assert tuple(WORDS) == EVERY


@pytest.mark.parametrize(
    ("command", "option"), COMMAND_PAIRS, ids=[f"{command}-{option}" for command, option in COMMAND_PAIRS]
)
def test_a_command_hands_an_option_on_or_refuses_it(command, option, monkeypatch, tmp_path):
    (tmp_path / "m.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n")
    monkeypatch.chdir(tmp_path)
    verb = COMMANDS[command]

    def heard(*args: Any, **given: Any) -> Any:
        keywords = {name: value for name, value in given.items() if name in EVERY}
        raise Seen(request_for({"check_passes": "passes"}.get(verb, verb), keywords))

    monkeypatch.setattr(torchparity, verb, heard)
    done = CliRunner().invoke(main.app, [command, "m.py:make", *WORDS[option]], standalone_mode=False)
    if option in REFUSED[verb]:
        assert isinstance(done.exception, UsageError), done.output
        assert option in done.exception.message
        assert done.exception.hint
    else:
        assert isinstance(done.exception, Seen), (done.output, done.exception)
        assert getattr(done.exception.request, option) == SAMPLES[option][0]


@pytest.mark.slow
def test_a_failure_that_needs_its_mode_and_config_is_made_small_with_them(tmp_path, backends):
    """Seen under a mode, a setting and an optimizer, captured, located, made small and blamed under the same."""
    made, args = model()
    out = tmp_path / "run"
    asked_for = {"mode": "max-autotune-no-cudagraphs", "config": {"inductor.max_fusion_size": 1}, "optimizer": "sgd"}
    found = torchparity.diagnose(made, args, backend=backends.wrong_under_a_mode, train=True, out=out, **asked_for)
    assert found.status is torchparity.Status.DIFFERS
    assert {run.name for run in found.stages if run.ending == "done"} >= {"check", "graph", "minify", "blame"}
    for bundle in (out / "graph", out / "small" / "case"):
        request = json.loads((bundle / "case.json").read_text())["request"]
        assert request["mode"] == "max-autotune-no-cudagraphs"
        assert request["optimizer"] == "sgd"
    assert found.smallest is not None
    assert found.smallest.reproduced == (3, 3)
