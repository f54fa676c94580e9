"""What an isolated check remembers, and of whom."""

from __future__ import annotations

import os
import sys
import time

import pytest

from torchparity import Status
from torchparity.request import request_for
from torchparity.run.target import Target
from torchparity.verbs.apart import checked_apart
from torchparity.verbs.asking import open_pool
from torchparity.verbs.remembering import FOLDER, IDLE_SECONDS, KEPT, code_digest, forget_old, home_of_checks
from torchparity.workers.outcome import Limits

ASKED = {"target": "model.py:make", "request": {"backend": "inductor"}}


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    place = tmp_path / "somebodys_own_module.py"
    place.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__(place.stem)
    yield place
    del sys.modules[place.stem]


def test_the_same_code_asked_the_same_has_one_place(own_module, monkeypatch):
    first = code_digest(ASKED)
    monkeypatch.setenv("SHLVL", "7")
    monkeypatch.setenv("PWD", "/elsewhere")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert code_digest(ASKED) == first


def test_other_code_another_question_or_environment_has_another(own_module, monkeypatch):
    found = {code_digest(ASKED), code_digest({**ASKED, "request": {"backend": "aot_eager"}})}
    monkeypatch.setenv("MY_PASS", "1")
    found.add(code_digest(ASKED))
    monkeypatch.delenv("MY_PASS")
    own_module.write_text("VALUE = 2\n")
    found.add(code_digest(ASKED))
    assert len(found) == 4


def test_who_has_turned_caches_off_has_none_of_ours(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    assert home_of_checks() == "/somewhere"
    monkeypatch.setenv("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
    assert home_of_checks() is None


def test_what_was_not_used_for_long_goes_and_what_is_in_use_stays(tmp_path):
    old = time.time() - 2 * IDLE_SECONDS
    for number in range(KEPT + 5):
        (tmp_path / f"{number:02}" / "inside").mkdir(parents=True)
        used = old + number if number != 1 else time.time()
        os.utime(tmp_path / f"{number:02}", (used, used))
    forget_old(tmp_path)
    left = sorted(folder.name for folder in tmp_path.iterdir())
    assert len(left) == KEPT
    assert "01" in left
    assert "00" not in left
    for number in range(KEPT + 5):
        (tmp_path / f"new{number}").mkdir()
    forget_old(tmp_path)
    assert all((tmp_path / f"new{number}").is_dir() for number in range(KEPT + 5))
    forget_old(tmp_path / "nowhere")


MODEL = """
import torch

def model(x):
    return torch.relu(x) * 3 + x

def make():
    return model, (torch.linspace(-1, 1, 64),)
"""
PATCH = """
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides

CppOverrides.relu = staticmethod(lambda x: f"({x} * decltype({x})(2))")
CppVecOverrides.relu = staticmethod(lambda x: f"({x} * decltype({x})(2))")
"""


@pytest.mark.slow
def test_a_patched_compiler_is_not_hidden_by_what_it_made_before(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "model.py"
    said, kept = [], []
    with open_pool(1) as pool:
        for text in (MODEL, MODEL, MODEL + PATCH, MODEL + PATCH, MODEL):
            place.write_text(text)
            target = Target(f"{place}:make")
            said.append(checked_apart(target, request_for("check", {}), pool, Limits(seconds=300.0)).status)
            kept.append(len(list((tmp_path / "cache" / FOLDER).iterdir())))
    assert said == [Status.SAME, Status.SAME, Status.DIFFERS, Status.DIFFERS, Status.SAME]
    assert kept == [1, 1, 2, 2, 2]
