"""The scripts of docs/found.md: each fails with torch 2.13 on a CPU, and passes where nothing is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOUND = Path(__file__).parents[2] / "docs" / "found"
SCRIPTS = sorted(FOUND.glob("*.py"))
# Bugs in the code for vectors of ARM.
ARM = {"amin_of_bytes", "argmin_bytes"}
# In the code for vectors of x86.
X86 = {
    "add_bools_as_integers", "add_true_to_bools", "floor_division_of_slice", "not_of_arange", "prod_overflows",
    "remainder_beyond", "tile_counted_twice",
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_is_short_and_named(script):
    assert len(script.read_text().splitlines()) <= 15
    assert script.stem in (FOUND.parent / "found.md").read_text().replace("strides_of_...", script.stem)


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="these are bugs of torch 2.13")
@pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_fails_and_passes_uncompiled(script):
    if script.stem in ARM and os.uname().machine != "aarch64":
        pytest.skip("seen with the vectors of ARM only")
    if script.stem in X86 and os.uname().machine != "x86_64":
        pytest.skip("seen with the vectors of x86 only")
    compiled = subprocess.run([sys.executable, script], check=False, capture_output=True)
    assert compiled.returncode == 1, compiled.stderr[-2000:]
    eager = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    assert subprocess.run([sys.executable, script], check=False, capture_output=True, env=eager).returncode == 0
