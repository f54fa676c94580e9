"""What every verb takes for a model: what can be called, a subject, and the name of a target; nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchparity
from torchparity.errors import ParityError, TargetError

VERBS = ("check", "assert_parity", "capture", "locate", "blame", "minify", "diagnose", "check_passes", "explain")
MODEL = """
import torch

def make():
    return torch.nn.Linear(3, 3), (torch.ones(2, 3),)
"""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("nothing", [3, None, {"model": 1}, (torch.ones(2),)], ids=["int", "none", "dict", "tuple"])
def test_what_cannot_be_called_is_refused(verb, nothing):
    with pytest.raises(TargetError, match="is not a model") as refused:
        getattr(torchparity, verb)(nothing, (torch.ones(2),))
    assert "file.py:name" in refused.value.hint


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("locate", "blame", "minify")])
def test_a_name_is_a_target(verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    try:
        getattr(torchparity, verb)("model.py:make", backend="eager" if verb != "check_passes" else "inductor")
    except ParityError as told:
        assert told.exit_code == 3, told  # Nothing fails.


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_that_is_none_is_told(verb):
    with pytest.raises(TargetError):
        getattr(torchparity, verb)("nowhere.py:make")
