"""`make demo`: diagnose a real bug of inductor in a small transformer, then check a model that is right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

HERE = Path(__file__).parent
TORCHPARITY = [sys.executable, "-m", "torchparity"]


def run(*arguments: str, expect: int) -> None:
    """Run a command as a user would; leave where it does not end as it should."""
    print(f"\n$ torchparity {' '.join(arguments)}", flush=True)
    code = subprocess.call([*TORCHPARITY, *arguments])
    if code != expect:
        sys.exit(f"the demo expected exit code {expect}, and got {code}")


def main() -> None:
    """Show both, and open the page where there is a screen."""
    os.chdir(HERE.parent)
    folder = Path("runs") / f"demo-{time.strftime('%Y-%m-%d-%H%M%S')}"
    run("diagnose", "examples/events.py:make", "--out", str(folder), expect=1)
    run("check", "examples/block.py:make", "--train", "--leaves", "3", expect=0)
    page = (folder / "index.html").resolve()
    print(f"\nThe page of the first: {page.as_uri()}")
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page.as_uri())


if __name__ == "__main__":
    main()
