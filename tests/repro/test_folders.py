"""One at a time in a folder; what was made for somebody who did nothing goes again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchparity import UsageError
from torchparity.repro.folders import alone_in

HOLDS = "import sys, time\nfrom torchparity.repro.folders import alone_in\nfrom pathlib import Path\n"
HOLDS += "with alone_in(Path(sys.argv[1]), 'hunt'):\n    print('here', flush=True)\n    time.sleep(60)\n"


def test_a_folder_that_another_process_holds_is_refused_until_it_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"here\n"
        with pytest.raises(UsageError, match="another hunt is running in") as refused, alone_in(tmp_path, "hunt"):
            pass
        assert "another folder" in refused.value.hint
        with alone_in(tmp_path, "sweep"):
            pass
        other.kill()
    with alone_in(tmp_path, "hunt"):
        pass


def test_a_folder_made_for_nothing_goes_and_one_with_something_stays(tmp_path):
    with pytest.raises(RuntimeError), alone_in(tmp_path / "nothing", "hunt"):
        raise RuntimeError
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(RuntimeError), alone_in(tmp_path / "something", "hunt"):
        (tmp_path / "something" / "found").touch()
        raise RuntimeError
    assert (tmp_path / "something" / "found").exists()
    (tmp_path / "was there").mkdir()
    with alone_in(tmp_path / "was there", "hunt"):
        pass
    assert (tmp_path / "was there").exists()
