"""Command lines made by a generator over all commands, options and kinds of values: two lines or a verdict, always."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import torchparity
from torchparity.cli import main
from torchparity.cli.start import begin
from torchparity.errors import ResourceError
from torchparity.hunting.campaign import Campaign, Plan
from torchparity.releases import since as asked_since
from torchparity.verbs import asking, diagnose, hunt, minify, since
from torchparity.workers.pool import Pool

MODEL = """
import torch
import torchparity
from torch._dynamo import register_backend

register_backend(torchparity.faults.plant("wrong_element", where="forward", site=0), name="planted")


def make():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), (torch.randn(2, 3),)


passes = [lambda graph: None]
"""
COMMANDS = {name: list(command.params) for name, command in typer.main.get_command(main.app).commands.items()}  # type: ignore[attr-defined]
# Each is as likely as it stands here; those that ask workers take seconds.
LIKELY = ("check",) * 6 + ("capture", "explain", "passes", "show", "report") * 3 + ("run", "minify", "locate", "blame")
LIKELY += ("diagnose", "backends", "faults", "nothing", "", "since", "hunt")
TARGETS = ("model.py:make",) * 6
TARGETS += (
    "model.py:nothing",
    "model.py",
    "nowhere.py:make",
    ":",
    "x:",
    "os:getcwd",
    "",
    "a b:c",
    "-",
    "model.py:passes",
)
BUNDLES = ("cases/forward_0",) * 2 + ("cases", "model.py", "nowhere", "", "/dev/null", "empty")
WORDS = ("x", "", "None", "\x1b[31m", "a" * 300, "é", "adamw", "sgd", "bfloat16", "mean", "default", "cpu", "eager")
NUMBERS = ("1", "2", "0", "-1", "3.5", str(2**70), "1e-3", "nan", "inf", "-inf", "1e400")
SETTINGS = ("x=", "=1", "inductor.max_fusion_size=1", "inductor.nothing=1", "dynamo.verbose=maybe", "stride", "é=é")
PLACES = ("found.json", "model.py", "nowhere/found", "/dev/full", "empty", "model.py:passes", "90%", "5m", "90s", "5y")
VALUES = (WORDS, NUMBERS, NUMBERS, SETTINGS, PLACES)
# What an option is made for, so that not everything is refused at once.
MEANT = {
    "--backend": ("eager", "aot_eager", "planted", "nothing", "", "torchparity"),
    "--out": ("out", "out/deeper", "model.py", "", "/dev/null"),
    "--resume": ("out", "nowhere", "cases", "model.py"),
    "--check": ("true", "false", "exit 125", "nowhere {}", "", "'"),
    "--passes": ("model.py:passes", "model.py:make", "x"),
    "--fail-on": ("wrong", "layout", "x"),
}
SLOW = ("--mode", "--isolate", "--steps", "--noise-runs", "--runs", "--iterations", "--times", "--calls", "--batch")
SLOW += ("--timeout", "--budget", "--queries")


class Lent:
    """Workers that outlive the command which opened them: what starts them takes longer than what they are asked."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __enter__(self) -> Pool:
        return self.pool

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    torchparity.capture("model.py:make", out=tmp_path / "cases", backend="aot_eager")
    with Pool(workers=1, preload=asking.PRELOAD, compilers=True) as pool:
        for module in (asking, diagnose, minify):
            monkeypatch.setattr(module, "open_pool", lambda *_, **__: Lent(pool))
        monkeypatch.setattr(hunt, "Pool", lambda *_, **__: Lent(pool))
        monkeypatch.setattr(hunt, "Campaign", short_campaign)
        monkeypatch.setattr(since, "known_series", lambda *_, **__: ("2.12", "2.13"))
        monkeypatch.setattr(asked_since, "environment_for", no_environment)
        yield


def short_campaign(store: Any, pool: Any, inquiry: Any, plan: Plan, hear: Any) -> Campaign:
    """A campaign of one program, however long it was to be."""
    return Campaign(store, pool, inquiry, replace(plan, programs=1, minutes=1.0, operators=False), hear)


def no_environment(asked: str, **how: object) -> None:
    raise ResourceError(f"there is no torch {asked}", hint="nothing is downloaded here")


def words_of(dice: random.Random) -> list[str]:
    """Return one command line."""
    command = dice.choice(LIKELY)
    words, options = [command], []
    for parameter in COMMANDS.get(command, ()):
        if not parameter.opts[0].startswith("-"):
            pool = {"bundle": BUNDLES, "runs": BUNDLES, "what": TARGETS + BUNDLES}.get(str(parameter.name), TARGETS)
            words += [dice.choice(pool)] if dice.random() < 0.97 else []
        elif parameter.opts[0] == "--backend":
            words += ["--backend", dice.choice(MEANT["--backend"])]
        elif parameter.opts[0] not in SLOW or dice.random() < 0.1:
            options.append(parameter)
    for parameter in dice.sample(options, min(len(options), dice.choice((0, 1, 1, 2, 3)))):
        flag = dice.choice([*parameter.opts, *parameter.secondary_opts])
        words.append(flag)
        if not parameter.is_flag:  # type: ignore[attr-defined]
            meant = MEANT.get(flag)
            words.append(dice.choice(meant if meant is not None and dice.random() < 0.7 else dice.choice(VALUES)))
    if dice.random() < 0.05:
        words.insert(dice.randrange(len(words) + 1), dice.choice(("--nope", "-x", "--", "--help", "--version")))
    return words


def ran(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "argv", ["torchparity", *words])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        begin()
    logging.disable(logging.NOTSET)
    torch.compiler.reset()
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def try_all(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        words = words_of(random.Random(seed))
        code, out, err = ran(words, monkeypatch)
        assert "Traceback" not in out + err, (seed, words, out, err)
        assert "torchparity itself failed" not in err, (seed, words, err)
        assert code in (0, 1, 2, 3, 125), (seed, words, code)
        told = [line.split(":")[0] for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
        if code == 2 and words[0] != "capture":  # It says what it refused, a line for each graph.
            assert told == ["error", "hint"], (seed, words, out, err)
        else:
            assert out.strip() or told == ["error", "hint"], (seed, words, out, err)


@pytest.mark.usefixtures("_place")
def test_some(monkeypatch: pytest.MonkeyPatch) -> None:
    try_all(range(80), monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("_place")
def test_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    try_all(range(1000, 2000), monkeypatch)
