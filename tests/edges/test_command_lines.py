"""Command lines made by a generator over all options and kinds of values: two lines or a verdict, never a traceback."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchparity.cli.options import REQUEST
from torchparity.cli.start import begin

MODEL = """
import torch


def make():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), (torch.randn(2, 3),)
"""
TARGETS = ("model.py:make",) * 6 + (
    "model.py:nothing",
    "model.py",
    "nowhere.py:make",
    ":",
    "x:",
    "os:getcwd",
    "",
    "a b:c",
    "-",
)
VALUES: dict[Any, tuple[str, ...]] = {
    int: ("1", "2", "0", "-1", "3.5", "x", "", str(2**70)),
    float: ("1e-3", "0", "-1", "nan", "inf", "1e400", "x", ""),
    str: ("x", "", "None", "\x1b[31m", "a" * 300, "é", "adamw", "sgd", "bfloat16", "mean", "default", "cpu", "eager"),
    list: (
        "x",
        "x=",
        "=1",
        "inductor.max_fusion_size=1",
        "inductor.nothing=1",
        "dynamo.verbose=maybe",
        "stride",
        "é=é",
    ),
}
BACKENDS = ("eager", "aot_eager", "nothing", "", "torchparity")
MORE = (
    "--isolate",
    "--timeout",
    "--memory",
    "--fail-on",
    "--json",
    "--junit",
    "--leaves",
    "--require-compiled",
    "--nope",
)
SLOW = ("--mode", "--isolate", "--steps", "--noise-runs", "--runs")


def words_of(dice: random.Random) -> list[str]:
    """Return one command line."""
    words = ["check", dice.choice(TARGETS), "--backend", dice.choice(BACKENDS), "--quiet"]
    for asking in dice.sample(REQUEST, dice.choice((0, 1, 1, 2, 3))):
        flag = asking.flag.split("/")[0]
        if flag in ("--backend", *SLOW):
            continue
        words.append(flag)
        kind = next((kind for kind in (int, float, list, str) if kind.__name__ in str(asking.kind)), None)
        if kind is not None and "bool" not in str(asking.kind):
            words.append(dice.choice(VALUES[kind]))
    if dice.random() < 0.3:
        words += [dice.choice(MORE), dice.choice(VALUES[dice.choice((int, float, str))])]
    return words


def ran(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "argv", ["torchparity", *words])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        begin()
    logging.disable(logging.NOTSET)
    torch.compiler.reset()
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def try_all(seeds: range, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.py").write_text(MODEL)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for seed in seeds:
        words = words_of(random.Random(seed))
        code, out, err = ran(words, monkeypatch)
        assert "Traceback" not in out + err, words
        assert "torchparity itself failed" not in err, (words, err)
        assert code in (0, 1, 2, 125), words
        if code == 2:
            told = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
            assert [line.split(":")[0] for line in told] == ["error", "hint"], (words, err)
        else:
            assert out.startswith(("SAME", "DIFFERS", "UNKNOWN")) or "error: " in err, (words, out, err)


def test_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_all(range(80), tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_all(range(1000, 2000), tmp_path, monkeypatch)
