"""What workers are asked for in tests of processes that do not end."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from torchparity.judge.isolated import answer
from torchparity.records import Progress

COMPILER = "/somewhere/torch/_inductor/compile_fx.py"


def deeper(depth: int) -> None:
    if depth:
        deeper(depth - 1)
    else:
        time.sleep(0.2)


def stands(payload: dict[str, Any], announce: Any) -> dict[str, Any]:
    """Announce a run of a candidate, and never return from it."""

    def judge(tell: Any) -> Any:
        tell(Progress(run=1, runs=5, name="eager"))
        tell(Progress(run=4, runs=5, name="inductor 1", candidate=True, device=payload["device"], patience=0.7))
        if payload["how"] == "leaves":
            time.sleep(1.0)
            print("this is why", flush=True)
            os._exit(3)
        if payload["how"] == "waits":
            time.sleep(1000)
        elif payload["how"] == "compiles":
            exec(compile("import time\ntime.sleep(1000)", COMPILER, "exec"))
        else:
            for depth in itertools.count():
                deeper(depth % 50)

    return answer(judge, announce)
