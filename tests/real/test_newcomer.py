"""A newcomer's path: a fresh clone, `make demo`, and the page of it. The rest of the path is docs/quick-start.md."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_fresh_clone_shows_the_demo(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path / "clone", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "floordiv introduces the error  events.py" in done.stdout
    assert "SAME" in done.stdout
    (run,) = (tmp_path / "clone" / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["smallest"]["reproduced"] == [3, 3]
    assert f"{(run / 'index.html').as_uri()}" in done.stdout
